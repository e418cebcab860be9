// Reads lines of text, each the value of a field, and prints it parsed as a List: names and parameters.
import { parseList } from 'structured-headers';
import { createInterface } from 'node:readline';

for await (const line of createInterface({ input: process.stdin })) {
  const items = parseList(line.trim()).map(([name, parameters]) => {
    const plain = [...parameters].map(([key, value]) => [key, typeof value === 'number' ? value : 'bytes']);
    return [name, Object.fromEntries(plain)];
  });
  console.log(JSON.stringify(items));
}
