#!/bin/bash
# The oracle: solves the task from the workspace alone.
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
python3 -I -S -B - <<'PROGRAM'
import json, re
text = open("logs/auth.log.1").read() + open("logs/auth.log").read()
count, inside, failed = {}, {}, 0
for verb, user, address in re.findall(r"(accepted|failed) password for (\S+) from (\S+)", text):
    if verb == "failed":
        failed += 1
        count[address] = count.get(address, 0) + 1
    elif count.get(address, 0) >= 4:
        inside.setdefault(address, user)
suspects = sorted((a for a in count if count[a] >= 4))
json.dump({"failed": failed, "suspects": suspects, "broken_in": inside}, open("findings.json", "w"))
PROGRAM
