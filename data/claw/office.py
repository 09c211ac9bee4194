"""Office families of the claw pack: reports, invoices, stock, diaries, address books. One function a family."""

from __future__ import annotations

from collections import defaultdict
from datetime import date, timedelta
from itertools import pairwise

from draw import FIRMS, PEOPLE, PRODUCTS, REGIONS, SERVICES, ClawTask, Draw, json_lines, table, want_csv, want_json

READ_CSV = "import csv, json\nfrom collections import defaultdict\nrows = list(csv.DictReader(open({file!r})))\n"


def sales_report(draw: Draw) -> ClawTask:
    """Totals of one quarter by region from a CSV with cancelled lines and other quarters in it."""
    year, quarter = draw.number(2023, 2026), draw.number(1, 4)
    regions, products = draw.some(REGIONS, 3), draw.some(PRODUCTS, 5)
    rows = []
    for n in range(draw.number(28, 40)):
        day = draw.day(year)
        state = draw.pick(("paid", "paid", "paid", "open", "cancelled"))
        rows.append(
            [f"S{n:04d}", day, draw.pick(regions), draw.pick(products), draw.number(1, 9), draw.cents(2, 90), state]
        )
    totals: dict[str, float] = dict.fromkeys(sorted(regions), 0.0)
    sold: dict[str, int] = defaultdict(int)
    counted = 0
    for _, day, region, product, amount, price, state in rows:
        if state != "cancelled" and (day.month - 1) // 3 + 1 == quarter:
            totals[region] += amount * price
            sold[product] += amount
            counted += 1
    best = min(sold, key=lambda p: (-sold[p], p)) if sold else ""
    want = {"orders": counted, "total": round(sum(totals.values()), 2), "best_seller": best,
            "by_region": {r: round(t, 2) for r, t in totals.items()}}  # fmt: skip
    header = ["id", "date", "region", "product", "quantity", "unit_price", "state"]
    return ClawTask(
        f"sales.csv holds our orders. Write report.json about quarter {quarter} of {year} (by the date column), leaving out "
        "cancelled orders: an object with the keys orders (how many), total (sum of quantity times unit_price, two decimals), "
        "best_seller (the product with the largest summed quantity; of equals the first in the alphabet; an empty text if there "
        "is none) and by_region (an object with the total of every region that occurs anywhere in the file, 0 where it has none).",
        {"sales.csv": table(header, rows)},
        [want_json("report.json", want)],
        READ_CSV.format(file="sales.csv")
        + f"""
totals = {{r["region"]: 0.0 for r in rows}}
sold, orders = defaultdict(int), 0
for r in rows:
    if r["state"] == "cancelled" or (int(r["date"][5:7]) + 2) // 3 != {quarter}:
        continue
    orders += 1
    totals[r["region"]] += int(r["quantity"]) * float(r["unit_price"])
    sold[r["product"]] += int(r["quantity"])
best = sorted(sold, key=lambda p: (-sold[p], p))[0] if sold else ""
json.dump({{"orders": orders, "total": round(sum(totals.values()), 2), "best_seller": best,
           "by_region": {{k: round(v, 2) for k, v in totals.items()}}}}, open("report.json", "w"))
""",
    )


def event_report(draw: Draw) -> ClawTask:
    """Error rates and slow calls by service from JSONL events, some lines of which are broken."""
    services = draw.some(SERVICES, 4)
    limit = draw.number(3, 9) * 100
    events = [
        {"service": draw.pick(services), "status": draw.pick((200, 200, 200, 204, 404, 500, 503)), "ms": draw.number(5, 1500)}
        for _ in range(draw.number(40, 60))
    ]  # fmt: skip
    lines = json_lines(events).splitlines()
    broken = draw.number(2, 4)
    for n in range(broken):
        lines.insert(
            draw.number(0, len(lines)), draw.pick(('{"service": "' + services[0], "-- rotated --", "{]" + str(n)))
        )
    by_service = {}
    for service in sorted({str(e["service"]) for e in events}):
        own = [e for e in events if e["service"] == service]
        by_service[service] = {
            "events": len(own),
            "errors": sum(int(str(e["status"])) >= 500 for e in own),
            "slow": sum(int(str(e["ms"])) > limit for e in own),
            "slowest_ms": max(int(str(e["ms"])) for e in own),
        }
    return ClawTask(
        "events.jsonl has one JSON object a line; a few lines are broken and must be skipped. Write summary.json: an object with "
        "broken_lines (how many were skipped) and services, an object with one entry a service that holds events (how many), "
        f"errors (status 500 and above), slow (ms above {limit}) and slowest_ms (the largest ms).",
        {"events.jsonl": "\n".join(lines) + "\n"},
        [want_json("summary.json", {"broken_lines": broken, "services": by_service})],
        f"""import json
services, broken = {{}}, 0
for line in open("events.jsonl"):
    try:
        e = json.loads(line)
    except ValueError:
        broken += 1
        continue
    s = services.setdefault(e["service"], {{"events": 0, "errors": 0, "slow": 0, "slowest_ms": 0}})
    s["events"] += 1
    s["errors"] += e["status"] >= 500
    s["slow"] += e["ms"] > {limit}
    s["slowest_ms"] = max(s["slowest_ms"], e["ms"])
json.dump({{"broken_lines": broken, "services": services}}, open("summary.json", "w"))
""",
    )


def invoices(draw: Draw) -> ClawTask:
    """Overdue invoices from one text file each, with a discount, a tax rate and a due date."""
    today, rate = date(2026, draw.number(3, 11), draw.number(1, 28)), draw.pick((5, 10, 20))
    files, rows, owed = {}, [], 0.0
    for n in range(draw.number(7, 10)):
        number, firm = f"R-{draw.number(100, 899) + n * 1000}", draw.pick(FIRMS)
        due = today + timedelta(days=draw.number(-60, 40))
        items = [(draw.pick(PRODUCTS), draw.number(1, 6), draw.cents(3, 80)) for _ in range(draw.number(1, 4))]
        paid = draw.number(0, 2) == 0
        net = sum(round(count * price * 100) for _, count, price in items)
        total = round(net * (100 + rate) / 100) / 100
        lines = [f"Invoice: {number}", f"Customer: {firm}", f"Due: {due}", f"Paid: {'yes' if paid else 'no'}", ""]
        lines += [f"{name} x{count} @ {price:.2f}" for name, count, price in items]
        files[f"invoices/{number}.txt"] = "\n".join(lines) + "\n"
        if not paid and due < today:
            rows.append([number, firm, str((today - due).days), f"{total:.2f}"])
            owed += total
    rows.sort(key=lambda r: (-int(r[2]), r[0]))
    if not rows:  # a task without an answer would be a free one
        return invoices(draw)
    return ClawTask(
        f"The folder invoices has one file an invoice. Today is {today}. Write overdue.csv with the unpaid invoices whose due date "
        f"is before today: header invoice,customer,days_late,total, the most days late first (equals by invoice number). The total "
        f"is the sum of count times price plus {rate} % tax, with two decimals. Also write owed.json with the keys invoices (how "
        "many are overdue) and amount (the sum of their totals).",
        files,
        [
            want_csv("overdue.csv", ["invoice", "customer", "days_late", "total"], rows, weight=3.0),
            want_json("owed.json", {"invoices": len(rows), "amount": round(owed, 2)}),
        ],
        f"""import csv, glob, json, re
from datetime import date
rows = []
for name in glob.glob("invoices/*.txt"):
    text = open(name).read()
    field = dict(re.findall(r"^(\\w+): (.*)$", text, re.M))
    due, today = date.fromisoformat(field["Due"]), date.fromisoformat("{today}")
    if field["Paid"] == "yes" or due >= today:
        continue
    net = sum(round(int(c) * float(p) * 100) for c, p in re.findall(r"x(\\d+) @ ([\\d.]+)$", text, re.M))
    rows.append([field["Invoice"], field["Customer"], (today - due).days, round(net * {100 + rate} / 100) / 100])
rows.sort(key=lambda r: (-r[2], r[0]))
with open("overdue.csv", "w", newline="") as out:
    w = csv.writer(out)
    w.writerow(["invoice", "customer", "days_late", "total"])
    w.writerows([a, b, c, f"{{d:.2f}}"] for a, b, c, d in rows)
json.dump({{"invoices": len(rows), "amount": round(sum(r[3] for r in rows), 2)}}, open("owed.json", "w"))
""",
    )


def inventory(draw: Draw) -> ClawTask:
    """One stock list from several counts of different days and column orders: the newest count of an item is right."""
    products = draw.some(PRODUCTS, 9)
    files, newest = {}, {}
    days = sorted({draw.day() for _ in range(4)})
    for n, day in enumerate(days):
        counted = draw.some(products, draw.number(4, 7))
        counts = {p: draw.number(0, 60) for p in counted}
        newest.update(counts)
        header, place = (
            (["item", "count"], draw.pick(("A", "B"))) if n % 2 else (["count", "item"], draw.pick(("A", "B")))
        )
        rows = [[counts[p] if h == "count" else p for h in header] for p in counted]
        files[f"counts/{day}_{place}.csv"] = table(header, rows)
    least = draw.number(8, 20)
    stock = [[p, str(newest[p])] for p in sorted(newest)]
    low = [p for p, count in sorted(newest.items()) if count < least]
    return ClawTask(
        "Each file in counts is a stock count of the day in its name; the order of its columns differs. For every item the newest "
        "count holds. Write stock.csv (header item,count, sorted by item) and reorder.txt with the items of which there are fewer "
        f"than {least}, one a line, sorted.",
        files,
        [
            want_csv("stock.csv", ["item", "count"], stock, weight=3.0),
            {"name": "reorder.txt", "kind": "text", "file": "reorder.txt", "want": "\n".join(low) + "\n", "weight": 1.0}
            if low
            else {
                "name": "reorder.txt",
                "kind": "matches",
                "file": "reorder.txt",
                "patterns": [[r"\S", False]],
                "weight": 1.0,
            },
        ],
        f"""import csv, glob
newest = {{}}
for name in sorted(glob.glob("counts/*.csv")):
    for row in csv.DictReader(open(name)):
        newest[row["item"]] = int(row["count"])
with open("stock.csv", "w", newline="") as out:
    w = csv.writer(out)
    w.writerow(["item", "count"])
    w.writerows(sorted(newest.items()))
open("reorder.txt", "w").write("".join(f"{{i}}\\n" for i, c in sorted(newest.items()) if c < {least}))
""",
    )


def clock(minutes: int) -> str:
    """Minutes of a day as HH:MM."""
    return f"{minutes // 60:02d}:{minutes % 60:02d}"


def schedule(draw: Draw) -> ClawTask:
    """The first slot of a day in which everybody is free, from one diary each, and who clashes with themselves."""
    people = [p.split()[0].lower() for p in draw.some(PEOPLE, 3)]
    length = draw.pick((30, 45, 60))
    files, busy, clashes = {}, [], []
    for person in people:
        lines, own = [], []
        for _ in range(draw.number(3, 5)):
            start = draw.number(34, 62) * 15
            end = start + draw.number(1, 6) * 15
            own.append((start, end))
            lines.append(f"{clock(start)}-{clock(end)} {draw.pick(('call', 'review', 'visit', 'lunch'))}")
        own.sort()
        busy += own
        if any(b[0] < a[1] for a, b in pairwise(own)):
            clashes.append(person)
        files[f"diaries/{person}.txt"] = "\n".join(draw.shuffled(lines)) + "\n"
    slot = next(
        (s for s in range(8 * 60, 18 * 60 - length + 1, 15) if all(e <= s or b >= s + length for b, e in busy)), None
    )
    want = {"slot": "none" if slot is None else f"{clock(slot)}-{clock(slot + length)}", "clashes": sorted(clashes)}
    return ClawTask(
        f"The files in diaries hold one day of each person. Find the first {length} minutes between 08:00 and 18:00, starting on a "
        "quarter of an hour, in which nobody has an entry (an entry may end exactly when the slot starts, and the other way round). "
        'Write plan.json with the keys slot (such as "09:15-10:00", or "none") and clashes (a sorted list of the people, named as '
        "their files, two of whose own entries overlap).",
        files,
        [want_json("plan.json", want)],
        f"""import glob, json, os, re
minutes = lambda t: int(t[:2]) * 60 + int(t[3:])
show = lambda m: f"{{m // 60:02d}}:{{m % 60:02d}}"
busy, clashes = [], []
for name in sorted(glob.glob("diaries/*.txt")):
    own = sorted((minutes(a), minutes(b)) for a, b in re.findall(r"^(\\d\\d:\\d\\d)-(\\d\\d:\\d\\d)", open(name).read(), re.M))
    busy += own
    if any(b[0] < a[1] for a, b in zip(own, own[1:])):
        clashes.append(os.path.basename(name)[:-4])
slot = "none"
for s in range(480, 1080 - {length} + 1, 15):
    if all(e <= s or b >= s + {length} for b, e in busy):
        slot = show(s) + "-" + show(s + {length})
        break
json.dump({{"slot": slot, "clashes": clashes}}, open("plan.json", "w"))
""",
    )


def contacts(draw: Draw) -> ClawTask:
    """One address book from two exports: names differ in case and space, and the newer entry of a name wins."""
    people = draw.some(PEOPLE, 8)
    first, second, merged = [], [], {}
    for n, name in enumerate(people):
        mail, phone = f"{name.split()[0].lower()}@{draw.pick(SERVICES)}.example", f"+1 555 {draw.number(1000, 9999)}"
        old, new = draw.day(2024), draw.day(2026)
        in_first, in_second = n % 3 != 1, n % 3 != 0
        if in_first:
            first.append([name, mail, phone, old])
            merged[name] = [name, mail, phone]
        if in_second:
            mail = mail if draw.number(0, 1) else mail.replace("@", ".new@")
            shown = draw.pick((name.upper(), name.lower(), f" {name} "))
            second.append([shown, mail, "" if n % 2 else phone, new])
            merged[name] = [name, mail, phone if in_first or not n % 2 else ""]
    rows = [merged[name] for name in sorted(merged)]
    header = ["name", "email", "phone", "updated"]
    return ClawTask(
        "Merge old.csv and new.csv into contacts.csv (header name,email,phone; sorted by name). The same person may be written in "
        "another case or with spaces around; write names as Ada Bell. Where both files have a person, take the fields with the "
        "later updated date, but keep the other file's field where the later one is empty.",
        {"old.csv": table(header, draw.shuffled(first)), "new.csv": table(header, draw.shuffled(second))},
        [want_csv("contacts.csv", ["name", "email", "phone"], rows)],
        """import csv
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
""",
    )
