#!/bin/bash
# The oracle: solves the task from the workspace alone.
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
python3 -I -S -B - <<'PROGRAM'
import glob, json, os, re
minutes = lambda t: int(t[:2]) * 60 + int(t[3:])
show = lambda m: f"{m // 60:02d}:{m % 60:02d}"
busy, clashes = [], []
for name in sorted(glob.glob("diaries/*.txt")):
    own = sorted((minutes(a), minutes(b)) for a, b in re.findall(r"^(\d\d:\d\d)-(\d\d:\d\d)", open(name).read(), re.M))
    busy += own
    if any(b[0] < a[1] for a, b in zip(own, own[1:])):
        clashes.append(os.path.basename(name)[:-4])
slot = "none"
for s in range(480, 1080 - 45 + 1, 15):
    if all(e <= s or b >= s + 45 for b, e in busy):
        slot = show(s) + "-" + show(s + 45)
        break
json.dump({"slot": slot, "clashes": clashes}, open("plan.json", "w"))
PROGRAM
