"""Reads lines of text, each the value of a field, and prints it parsed as a List: names and parameters."""
import json, sys
import http_sf

for line in sys.stdin:
    items = http_sf.parse(line.strip().encode(), tltype="list")
    print(json.dumps([[name, {key: repr_ if isinstance(repr_, int) else "bytes" for key, repr_ in params.items()}]
                      for name, params in items]))
