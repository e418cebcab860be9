"""Runs real clients and proxies against our servers, and checks what they did: see README.md.

    driver.py HOME      HOME holds node/ and python/, as `run` has installed them
"""
import http.client
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
HOME = Path(sys.argv[1])
PYTHON = str(HOME / "python/bin/python")
EXAMPLES = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "debug/examples"

# One request each two seconds, so a refused one has to wait for two.
TWO_SECONDS = '[[rule]]\nname = "per-client"\nquota = "1/2s"\nkey = "header:x-client"\n'
DIALECTS = ["draft-11", "draft-07", "draft-06", "x-ratelimit", "x-ratelimit-epoch", "none"]
faults = []


def check(fine, what):
    if not fine:
        faults.append(what)
    return "" if fine else " **FAILED**"


class Server:
    """One of our examples, with a configuration."""

    def __init__(self, example, config):
        self.config = tempfile.NamedTemporaryFile("w", suffix=".toml")
        self.config.write(config)
        self.config.flush()
        command = [EXAMPLES / example, "--listen", "127.0.0.1:0", "--config", self.config.name]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        line = self.process.stdout.readline()
        if "http://" not in line:
            sys.exit(f"{example} does not start with\n{config}")
        self.address = line.strip().split("http://")[1]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        self.config.close()


class Counting:
    """A proxy that notes when each client asks and what it is told."""

    def __init__(self, backend):
        self.seen = defaultdict(list)
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self):
                asked = time.monotonic()
                upstream = http.client.HTTPConnection(backend)
                upstream.request("GET", self.path, headers={"x-client": self.headers["x-client"]})
                answer = upstream.getresponse()
                body = answer.read()
                told = answer.headers.get_all("retry-after") or []
                outer.seen[self.headers["x-client"]].append((asked, answer.status, told))
                self.send_response_only(answer.status)
                for name, value in answer.getheaders():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(body)
                upstream.close()

            def log_message(self, *_):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


def run(command, **options):
    return subprocess.run(command, capture_output=True, text=True, timeout=60, **options)


def script(name):
    """Returns how to run a client's script."""
    if name.endswith(".mjs"):
        return ["node", str(HOME / "node" / name)]
    return [PYTHON, str(HERE / name)]


def curl(url, name):
    once = ["curl", "--silent", "--show-error", "--header", f"x-client: {name}", url]
    run(once)
    # To its standard output: it cannot begin /dev/null anew for a second try.
    return run([*once, "--retry", "3", "--write-out", '\n{"status": %{http_code}}'])


def http_clients():
    scripts = sorted(path.name for path in HERE.glob("http_*") if "fetch" not in path.name)
    clients = {"curl": curl}
    for file in scripts:
        name = file.removeprefix("http_").rsplit(".", 1)[0].replace("_", "-")
        clients[name] = lambda url, client, file=file: run([*script(file), url, client])
    return clients


def http_matrix():
    print("\n## HTTP clients: refused once, told to wait 2 s\n")
    print("| client | dialect | requests | came back after | got |\n|---|---|---|---|---|")
    for dialect in DIALECTS:
        config = f'headers = {{ dialect = "{dialect}" }}\n{TWO_SECONDS}'
        with Server("axum", config) as server, ThreadPoolExecutor(4) as pool:
            counting = Counting(server.address)
            clients = http_clients()
            ends = pool.map(lambda client: (client[0], client[1](counting.url, client[0])), clients.items())
            for name, end in ends:
                judge(name, dialect, end, counting.seen[name])


def judge(name, dialect, end, seen):
    """Nobody raises, comes back before the time that it was told, or is refused a second time."""
    what = f"{name}, {dialect}"
    statuses = [status for _, status, _ in seen]
    try:
        got = json.loads(end.stdout.splitlines()[-1])["status"]
    except (ValueError, KeyError, IndexError):
        got = (end.stderr.strip().splitlines() or ["nothing"])[-1]
    fine = check(got == 200, f"{what}: {got}") + check(statuses == [200, 429, 200], f"{what}: was answered {statuses}")
    waited = "never"
    if len(seen) > 2:
        told = seen[1][2]
        check(len(told) == 1 and told[0].isdigit(), f"{what}: Retry-After is {told}")
        waited = seen[2][0] - seen[1][0]
        # A timer of the client's may be some milliseconds early.
        fine += check(int(told[0]) - 0.02 <= waited <= int(told[0]) + 1.5, f"{what}: came back after {waited:.2f} s")
        waited = f"{waited:.2f} s"
    print(f"| {name} | {dialect} | {', '.join(map(str, statuses))} | {waited} | {got}{fine} |")


def grpc_matrix():
    print("\n## gRPC clients: refused once, with a backoff of 9 s of their own\n")
    print("| client | refused with | details | pushback | came back after |\n|---|---|---|---|---|")
    with Server("tonic", TWO_SECONDS) as server:
        for file, client in [("grpc_grpcio.py", "grpcio"), ("grpc_grpc_js.mjs", "grpc-js")]:
            end = run([*script(file), server.address, client])
            try:
                told = json.loads(end.stdout)
            except ValueError:
                check(False, f"{client}: {end.stderr}")
                continue
            pushback, waited = int(told["pushback"]) / 1000, told["waited"]
            fine = check(told["code"] == "RESOURCE_EXHAUSTED", f"{client}: {told}")
            fine += check(told["details"] == ["QuotaFailure", "RetryInfo"], f"{client}: {told}")
            fine += check('"per-client";r=0' in told["ratelimit"], f"{client}: {told}")
            # What has passed between the refusal and the next call is off; the backoff is never waited for.
            fine += check(pushback - 1.5 <= waited <= 4, f"{client}: came back after {waited:.2f} s")
            print(f"| {client} | {told['code']} | {', '.join(told['details'])} | {pushback:.3f} s | {waited:.2f} s{fine} |")


def grpc_web():
    print("\n## gRPC-Web by fetch, over HTTP/1.1\n")
    with Server("axum", TWO_SECONDS) as server:
        end = run([*script("http_fetch_grpc_web.mjs"), f"http://{server.address}/api/x.Y/Z", "page"])
        told = json.loads(end.stdout)
        fine = check(
            told["status"] == 200
            and told["code"] == "8"
            and told["type"] == "application/grpc-web+proto"
            and "per-client" in told["message"]
            and int(told["pushback"]) > 0
            and told["length"] == 0,
            f"gRPC-Web by fetch: {told}",
        )
        print(f"status {told['code']}, `{told['message']}`, as `{told['type']}`{fine}")


def structured_fields():
    print("\n## Structured fields, read by two parsers\n")
    rules = [("burst", "20/s", 7), ("daily", "2147483648/1d", 1), ("A.b_c-9", "5/1500ms", 1)]
    config = "".join(
        f'[[rule]]\nname = "{name}"\nquota = "{quota}"\nkey = "header:x-client"\nalgorithm = "fixed-window"\ncost = {cost}\n'
        for name, quota, cost in rules
    )
    config = f'headers = {{ partition_keys = true }}\nstore = {{ key_secret = "pepper" }}\n{config}'
    with Server("axum", config) as server:
        fields = []
        for _ in range(4):
            upstream = http.client.HTTPConnection(server.address)
            upstream.request("GET", "/", headers={"x-client": "a"})
            answer = upstream.getresponse()
            fields += [answer.headers["ratelimit"], answer.headers["ratelimit-policy"]]
            upstream.close()
    text = "".join(f"{field}\n" for field in fields)
    parsed = []
    for parser in ["fields.py", "fields.mjs"]:
        end = run(script(parser), input=text)
        lines = [json.loads(line) for line in end.stdout.splitlines()]
        check(len(lines) == len(fields), f"{parser} reads {len(lines)} of {len(fields)}: {end.stderr}")
        parsed.append(lines)
    fine = check(parsed[0] == parsed[1], f"the parsers read differently: {parsed}")
    names = [name for name, _, _ in rules]
    for states, policies in zip(parsed[0][::2], parsed[0][1::2]):
        fine += check([name for name, _ in states] == names, f"names: {states}")
        fine += check(all(sorted(told) == ["pk", "r", "t"] for _, told in states), f"parameters: {states}")
        fine += check([told.get("w") for _, told in policies] == [1, 86400, None], f"windows: {policies}")
        fine += check([told["q"] for _, told in policies] == [20, 2147483648, 5], f"quotas: {policies}")
    print(f"{len(fields)} values, the same by http-sf and structured-headers{fine}")


def free_port():
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return listening.getsockname()[1]


def ask(port, source, headers):
    """Asks through a proxy, from an address of this machine."""
    client = http.client.HTTPConnection("127.0.0.1", port, source_address=(source, 0))
    client.putrequest("GET", "/api/x")
    for name, value in headers:
        client.putheader(name, value)
    client.endheaders()
    status = client.getresponse().status
    client.close()
    return status


# As in docs/proxies.md.
NGINX = "proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;"
NGINX_ONE = "proxy_set_header X-Real-IP $remote_addr;"
HAPROXY = "option forwardfor"
HAPROXY_FORWARDED = "http-request set-header Forwarded for=%[src]"
DOCS = (ROOT / "docs/proxies.md").read_text()
PROXIES = [
    ("nginx", NGINX, 'client_ip = { trust = ["127.0.0.1"] }'),
    ("nginx", NGINX, "client_ip = { hops = 1 }"),
    ("nginx", NGINX_ONE, 'client_ip = { header = "x-real-ip", trust = ["127.0.0.1"] }'),
    ("haproxy", HAPROXY, 'client_ip = { trust = ["127.0.0.1"] }'),
    ("haproxy", HAPROXY, "client_ip = { hops = 1 }"),
    ("haproxy", HAPROXY_FORWARDED, 'client_ip = { header = "forwarded", hops = 1 }'),
]
HOURLY = '[[rule]]\nname = "per-client"\nquota = "3/1h"\n'


def proxied(kind, line, backend, folder):
    """Starts a proxy with this line of its configuration in front of a backend."""
    port = free_port()
    file = Path(folder) / kind
    if kind == "nginx":
        file.write_text(f"""
daemon off; pid {folder}/pid; error_log {folder}/log; worker_processes 1;
events {{}}
http {{
  access_log off;
  client_body_temp_path {folder}/b; proxy_temp_path {folder}/p; fastcgi_temp_path {folder}/f;
  uwsgi_temp_path {folder}/u; scgi_temp_path {folder}/s;
  server {{
    listen 127.0.0.1:{port};
    location / {{
      proxy_pass http://{backend};
      {line}
    }}
  }}
}}
""")
        command = ["nginx", "-c", str(file), "-p", folder, "-e", f"{folder}/log"]
    else:
        file.write_text(f"""
defaults
  mode http
  timeout connect 5s
  timeout client 5s
  timeout server 5s
frontend in
  bind 127.0.0.1:{port}
  {line}
  default_backend ours
backend ours
  server one {backend}
""")
        command = ["haproxy", "-f", str(file)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    for _ in range(100):
        with socket.socket() as trying:
            if trying.connect_ex(("127.0.0.1", port)) == 0:
                return process, port
        time.sleep(0.05)
    process.kill()
    sys.exit(f"{' '.join(command)} does not listen")


def has_other_addresses():
    """Returns whether this machine answers to more of 127.0.0.0/8 than one address: Linux does."""
    try:
        with socket.socket() as listening:
            listening.bind(("127.0.0.2", 0))
        return True
    except OSError:
        return False


def proxies():
    if not has_other_addresses():
        print("\nproxies skipped: this machine has one loopback address")
        return
    print("\n## Proxies: three requests an hour for each client, forged headers sent along\n")
    print("| proxy | its line | ours | one client, forging | another |\n|---|---|---|---|---|")
    for kind, line, ours in PROXIES:
        if not shutil.which(kind):
            print(f"| {kind} | skipped: it is not installed | | | |")
            continue
        with Server("axum", f"{ours}\n{HOURLY}") as server, tempfile.TemporaryDirectory() as folder:
            os.chmod(folder, 0o777)
            process, port = proxied(kind, line, server.address, folder)
            try:
                forged = lambda i: [
                    ("x-forwarded-for", f"198.51.100.{i}"), ("forwarded", f'for=198.51.100.{i};x="'),
                    ("x-real-ip", f"198.51.100.{i}"),
                ]
                one = [ask(port, "127.0.0.2", forged(i)) for i in range(6)]
                other = [ask(port, "127.0.0.3", []) for _ in range(1)]
            finally:
                process.terminate()
                process.wait()
            fine = check(line in DOCS, f"{line} is not in docs/proxies.md")
            fine += check(one == [200] * 3 + [429] * 3 and other == [200], f"{kind}, {line}, {ours}: {one}, {other}")
            print(f"| {kind} | `{line}` | `{ours}` | {one} | {other}{fine} |")


http_matrix()
grpc_matrix()
grpc_web()
structured_fields()
proxies()
if faults:
    print("\nfailed:\n- " + "\n- ".join(faults), file=sys.stderr)
    sys.exit(1)
