import json, sys
import urllib3
from urllib3.util import Retry

url, name = sys.argv[1:]
http = urllib3.PoolManager()
headers = {"x-client": name}
http.request("GET", url, headers=headers, retries=False)
answer = http.request("GET", url, headers=headers, retries=Retry(total=3, status_forcelist=[429]))
print(json.dumps({"status": answer.status}))
