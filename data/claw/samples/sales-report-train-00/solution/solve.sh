#!/bin/bash
# The oracle: solves the task from the workspace alone.
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
python3 -I -S -B - <<'PROGRAM'
import csv, json
from collections import defaultdict
rows = list(csv.DictReader(open('sales.csv')))

totals = {r["region"]: 0.0 for r in rows}
sold, orders = defaultdict(int), 0
for r in rows:
    if r["state"] == "cancelled" or (int(r["date"][5:7]) + 2) // 3 != 1:
        continue
    orders += 1
    totals[r["region"]] += int(r["quantity"]) * float(r["unit_price"])
    sold[r["product"]] += int(r["quantity"])
best = sorted(sold, key=lambda p: (-sold[p], p))[0] if sold else ""
json.dump({"orders": orders, "total": round(sum(totals.values()), 2), "best_seller": best,
           "by_region": {k: round(v, 2) for k, v in totals.items()}}, open("report.json", "w"))
PROGRAM
