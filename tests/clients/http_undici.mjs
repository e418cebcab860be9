import { Agent, RetryAgent, request } from 'undici';

const [url, name] = process.argv.slice(2);
const headers = { 'x-client': name };
await (await request(url, { headers })).body.dump();
const dispatcher = new RetryAgent(new Agent(), { maxRetries: 3, statusCodes: [429, 503] });
const answer = await request(url, { headers, dispatcher });
await answer.body.dump();
console.log(JSON.stringify({ status: answer.statusCode }));
process.exit();
