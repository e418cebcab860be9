import axios from 'axios';
import axiosRetry from 'axios-retry';

const [url, name] = process.argv.slice(2);
const headers = { 'x-client': name };
await axios.get(url, { headers });
const client = axios.create({ headers });
axiosRetry(client, {
  retries: 3,
  retryDelay: axiosRetry.exponentialDelay,
  retryCondition: (error) => axiosRetry.isNetworkOrIdempotentRequestError(error) || error.response?.status === 429,
});
console.log(JSON.stringify({ status: (await client.get(url)).status }));
