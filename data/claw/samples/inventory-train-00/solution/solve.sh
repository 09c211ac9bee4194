#!/bin/bash
# The oracle: solves the task from the workspace alone.
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
python3 -I -S -B - <<'PROGRAM'
import csv, glob
newest = {}
for name in sorted(glob.glob("counts/*.csv")):
    for row in csv.DictReader(open(name)):
        newest[row["item"]] = int(row["count"])
with open("stock.csv", "w", newline="") as out:
    w = csv.writer(out)
    w.writerow(["item", "count"])
    w.writerows(sorted(newest.items()))
open("reorder.txt", "w").write("".join(f"{i}\n" for i, c in sorted(newest.items()) if c < 12))
PROGRAM
