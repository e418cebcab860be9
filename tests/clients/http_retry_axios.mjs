import axios from 'axios';
import * as rax from 'retry-axios';

const [url, name] = process.argv.slice(2);
const headers = { 'x-client': name };
await axios.get(url, { headers });
const client = axios.create({ headers });
client.defaults.raxConfig = { retry: 3 };
rax.attach(client);
console.log(JSON.stringify({ status: (await client.get(url)).status }));
