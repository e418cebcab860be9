// As a page would: gRPC-Web over HTTP/1.1, by fetch alone.
const [url, name] = process.argv.slice(2);
const ask = () =>
  fetch(url, {
    method: 'POST',
    headers: { 'x-client': name, 'content-type': 'application/grpc-web+proto', 'x-grpc-web': '1' },
    body: new Uint8Array(5),
  });
await ask();
const answer = await ask();
const body = await answer.arrayBuffer();
console.log(JSON.stringify({
  status: answer.status,
  type: answer.headers.get('content-type'),
  code: answer.headers.get('grpc-status'),
  message: decodeURIComponent(answer.headers.get('grpc-message') ?? ''),
  pushback: answer.headers.get('grpc-retry-pushback-ms'),
  length: body.byteLength,
}));
