#!/bin/bash
# The oracle: solves the task from the workspace alone.
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
python3 -I -S -B - <<'PROGRAM'
import csv, glob, json, os, re
rows, reached, pages = [], set(), sorted(glob.glob("docs/*.md"))
for page in pages:
    for number, line in enumerate(open(page), 1):
        for target in re.findall(r"\]\(([^)]+)\)", line):
            if target.startswith("https"):
                continue
            if os.path.exists("docs/" + target):
                reached.add("docs/" + target)
            else:
                rows.append([page, number, target])
with open("broken.csv", "w", newline="") as out:
    w = csv.writer(out)
    w.writerow(["page", "line", "target"])
    w.writerows(rows)
json.dump([p for p in pages if p not in reached], open("orphans.json", "w"))
PROGRAM
