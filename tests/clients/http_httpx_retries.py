import json, sys
import httpx
from httpx_retries import Retry, RetryTransport

url, name = sys.argv[1:]
headers = {"x-client": name}
with httpx.Client(headers=headers) as once:
    once.get(url)
with httpx.Client(headers=headers, transport=RetryTransport(retry=Retry(total=3))) as client:
    print(json.dumps({"status": client.get(url).status_code}))
