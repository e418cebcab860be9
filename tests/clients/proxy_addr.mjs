// Reads lines of JSON, {"peer", "forwarded", "trust"}, and prints for each the addresses that proxy-addr walks, the peer first,
// up to and with the one that it does not trust.
import proxyaddr from 'proxy-addr';
import { createInterface } from 'node:readline';

for await (const line of createInterface({ input: process.stdin })) {
  const { peer, forwarded, trust } = JSON.parse(line);
  const request = { headers: { 'x-forwarded-for': forwarded }, connection: { remoteAddress: peer } };
  console.log(JSON.stringify(proxyaddr.all(request, proxyaddr.compile(trust))));
}
