import json, sys, time
import grpc
from google.rpc import error_details_pb2
from grpc_status import rpc_status

address, name = sys.argv[1:]
PATH = "/grpc.health.v1.Health/Check"
# Longer than it is told to wait: who obeys the pushback is back before.
RETRY = {
    "methodConfig": [{
        "name": [{}],
        "retryPolicy": {
            "maxAttempts": 3,
            "initialBackoff": "9s",
            "maxBackoff": "9s",
            "backoffMultiplier": 1,
            "retryableStatusCodes": ["RESOURCE_EXHAUSTED"],
        },
    }]
}


def channel(config):
    options = [("grpc.service_config", json.dumps(config)), ("grpc.enable_retries", 1 if config else 0)]
    return grpc.insecure_channel(address, options=options)


def check(config, name):
    with channel(config) as connection:
        call = connection.unary_unary(PATH, request_serializer=bytes, response_deserializer=bytes)
        return call(b"", metadata=[("x-client", name)], timeout=30)


check({}, name)
result = {}
try:
    check({}, name)
except grpc.RpcError as error:
    status = rpc_status.from_call(error)
    details = {}
    for any_ in status.details:
        for kind in (error_details_pb2.RetryInfo, error_details_pb2.QuotaFailure):
            if any_.Is(kind.DESCRIPTOR):
                message = kind()
                any_.Unpack(message)
                details[kind.DESCRIPTOR.name] = str(message)
    metadata = dict(error.trailing_metadata())
    result = {
        "code": error.code().name,
        "details": sorted(details),
        "pushback": metadata.get("grpc-retry-pushback-ms"),
        "ratelimit": metadata.get("ratelimit"),
    }
started = time.monotonic()
check(RETRY, name)
result["waited"] = time.monotonic() - started
print(json.dumps(result))
