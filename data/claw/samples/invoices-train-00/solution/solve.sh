#!/bin/bash
# The oracle: solves the task from the workspace alone.
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
python3 -I -S -B - <<'PROGRAM'
import csv, glob, json, re
from datetime import date
rows = []
for name in glob.glob("invoices/*.txt"):
    text = open(name).read()
    field = dict(re.findall(r"^(\w+): (.*)$", text, re.M))
    due, today = date.fromisoformat(field["Due"]), date.fromisoformat("2026-06-16")
    if field["Paid"] == "yes" or due >= today:
        continue
    net = sum(round(int(c) * float(p) * 100) for c, p in re.findall(r"x(\d+) @ ([\d.]+)$", text, re.M))
    rows.append([field["Invoice"], field["Customer"], (today - due).days, round(net * 120 / 100) / 100])
rows.sort(key=lambda r: (-r[2], r[0]))
with open("overdue.csv", "w", newline="") as out:
    w = csv.writer(out)
    w.writerow(["invoice", "customer", "days_late", "total"])
    w.writerows([a, b, c, f"{d:.2f}"] for a, b, c, d in rows)
json.dump({"invoices": len(rows), "amount": round(sum(r[3] for r in rows), 2)}, open("owed.json", "w"))
PROGRAM
