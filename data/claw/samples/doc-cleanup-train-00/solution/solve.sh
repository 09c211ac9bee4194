#!/bin/bash
# The oracle: solves the task from the workspace alone.
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
python3 -I -S -B - <<'PROGRAM'
import re
lines, code = [], False
for line in open("guide.md").read().splitlines():
    if line.startswith("```"):
        code = not code
    elif not code:
        line = re.sub(r"^(#+)\s*", r"\1 ", line)
        line = re.sub(r"^[*+-]\s+", "- ", line)
        line = re.sub(r"\boilcan\b", "anvil", line).rstrip()
    lines.append(line)
open("guide.md", "w").write("\n".join(lines) + "\n")
PROGRAM
