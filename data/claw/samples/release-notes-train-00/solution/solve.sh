#!/bin/bash
# The oracle: solves the task from the workspace alone.
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
python3 -I -S -B - <<'PROGRAM'
rows = [line.rstrip().split(" ", 2) for line in open("commits.txt")]
gone = {r[2] for r in rows if r[1] == "revert:"}
rows = [(k.rstrip(":"), t) for n, k, t in rows if n not in gone and k != "revert:"]
out = "# 2.5.0\n"
for title, test in (("Breaking", lambda k: k[-1] == "!"), ("Added", lambda k: k == "feat"), ("Fixed", lambda k: k == "fix"), ("Documentation", lambda k: k == "docs")):
    own = sorted(t for k, t in rows if test(k))
    if own:
        out += f"\n## {title}\n\n" + "".join(f"- {t}\n" for t in own)
open("NOTES.md", "w").write(out)
PROGRAM
