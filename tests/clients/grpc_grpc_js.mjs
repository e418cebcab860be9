import grpc from '@grpc/grpc-js';
import loader from '@grpc/proto-loader';
import { fileURLToPath } from 'node:url';

const [address, name] = process.argv.slice(2);
const definition = loader.loadSync(fileURLToPath(new URL('health.proto', import.meta.url)));
const { Health } = grpc.loadPackageDefinition(definition).grpc.health.v1;
// Longer than it is told to wait: who obeys the pushback is back before.
const retrying = JSON.stringify({
  methodConfig: [{
    name: [{}],
    retryPolicy: {
      maxAttempts: 3,
      initialBackoff: '9s',
      maxBackoff: '9s',
      backoffMultiplier: 1,
      retryableStatusCodes: ['RESOURCE_EXHAUSTED'],
    },
  }],
});

function check(config) {
  const options = config ? { 'grpc.service_config': config } : { 'grpc.enable_retries': 0 };
  const client = new Health(address, grpc.credentials.createInsecure(), options);
  const metadata = new grpc.Metadata();
  metadata.set('x-client', name);
  return new Promise((resolve, reject) => {
    client.Check({}, metadata, (error, reply) => {
      client.close();
      error ? reject(error) : resolve(reply);
    });
  });
}

await check();
const result = {};
try {
  await check();
} catch (error) {
  result.code = grpc.status[error.code];
  result.pushback = error.metadata.get('grpc-retry-pushback-ms')[0];
  result.ratelimit = error.metadata.get('ratelimit')[0];
  const details = error.metadata.get('grpc-status-details-bin')[0];
  result.details = ['QuotaFailure', 'RetryInfo'].filter((kind) => details.includes(`type.googleapis.com/google.rpc.${kind}`));
}
const started = performance.now();
await check(retrying);
result.waited = (performance.now() - started) / 1000;
console.log(JSON.stringify(result));
