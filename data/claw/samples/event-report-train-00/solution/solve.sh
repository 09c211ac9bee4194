#!/bin/bash
# The oracle: solves the task from the workspace alone.
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
python3 -I -S -B - <<'PROGRAM'
import json
services, broken = {}, 0
for line in open("events.jsonl"):
    try:
        e = json.loads(line)
    except ValueError:
        broken += 1
        continue
    s = services.setdefault(e["service"], {"events": 0, "errors": 0, "slow": 0, "slowest_ms": 0})
    s["events"] += 1
    s["errors"] += e["status"] >= 500
    s["slow"] += e["ms"] > 600
    s["slowest_ms"] = max(s["slowest_ms"], e["ms"])
json.dump({"broken_lines": broken, "services": services}, open("summary.json", "w"))
PROGRAM
