#!/bin/bash
# The oracle: solves the task from the workspace alone.
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
python3 -I -S -B - <<'PROGRAM'
import csv
rows = [r for f in ("old.csv", "new.csv") for r in csv.DictReader(open(f))]
book = {}
for r in sorted(rows, key=lambda r: r["updated"]):
    name = " ".join(r["name"].split()).title()
    entry = book.setdefault(name, {"email": "", "phone": ""})
    for key in entry:
        entry[key] = r[key].strip() or entry[key]
with open("contacts.csv", "w", newline="") as out:
    w = csv.writer(out)
    w.writerow(["name", "email", "phone"])
    w.writerows([n, e["email"], e["phone"]] for n, e in sorted(book.items()))
PROGRAM
