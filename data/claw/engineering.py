"""Engineering families of the claw pack: configuration, logs, documents, code. One function a family."""

from __future__ import annotations

import json
from collections import Counter

from draw import PEOPLE, PRODUCTS, SERVICES, Check, ClawTask, Draw, want_csv, want_json, want_text

KEYS = ("host", "port", "timeout", "retries", "region", "verbose", "cache", "level")


def config_migration(draw: Draw) -> ClawTask:
    """Old INI files into one JSON: keys renamed, sections merged, types made right, one key dropped."""
    services = draw.some(SERVICES, 3)
    renamed, dropped = draw.some(KEYS, 3)[:2], draw.pick(KEYS)
    renames = {old: f"{old}_{draw.pick(('v2', 'name', 'value'))}" for old in renamed if old != dropped}
    files, want = {}, {}
    for service in services:
        lines, values = [f"# settings of {service}", f"[{service}]"], {}
        for key in draw.some(KEYS, 6):
            value: object = draw.pick((draw.number(1, 9000), draw.number(0, 1) == 1, draw.pick(PRODUCTS)))
            shown = {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)
            lines.append(
                draw.pick((f"{key} = {shown}", f"{key}={shown}", f"{key} = {shown}  ; was {draw.number(1, 9)}"))
            )
            if key != dropped:
                values[renames.get(key, key)] = value
        files[f"etc/{service}.ini"] = "\n".join(lines) + "\n"
        want[service] = values
    changes = "; ".join(f"{old} becomes {new}" for old, new in sorted(renames.items())) or "none"
    return ClawTask(
        "Turn the INI files in etc into one config.json: an object with one entry a section, holding its keys. Text after ; is a "
        "comment. Whole numbers become numbers, yes and no become true and false, everything else stays text. "
        f"Renamed keys: {changes}. The key {dropped} is gone: leave it out. Leave the old files as they are.",
        files,
        [want_json("config.json", want)],
        f"""import glob, json
renames, out = {json.dumps(renames)}, {{}}
for name in glob.glob("etc/*.ini"):
    for line in open(name):
        line = line.split(";")[0].strip()
        if line.startswith("["):
            section = out.setdefault(line.strip("[]"), {{}})
        elif line and line[0] != "#":
            key, value = (part.strip() for part in line.split("=", 1))
            if key != {dropped!r}:
                value = {{"yes": True, "no": False}}.get(value, int(value) if value.isdigit() else value)
                section[renames.get(key, key)] = value
json.dump(out, open("config.json", "w"))
""",
    )


def log_forensics(draw: Draw) -> ClawTask:
    """Who guessed passwords: failures by address in rotated logs, and which address got in after them."""
    addresses = [f"10.{draw.number(0, 255)}.{draw.number(0, 255)}.{n}" for n in range(10, 16)]
    users = [p.split()[0].lower() for p in draw.some(PEOPLE, 5)]
    day, limit = draw.day(), draw.number(3, 5)
    entries = [[draw.pick(addresses), draw.pick(users), draw.number(0, 4) == 0] for _ in range(draw.number(40, 55))]
    lines = [
        f"{day}T{8 + n // 60:02d}:{n % 60:02d}:00 sshd {'accepted' if ok else 'failed'} password for {user} from {address}"
        for n, (address, user, ok) in enumerate(entries)
    ]
    for _ in range(6):
        lines.append(
            f"{day}T{draw.number(8, 19):02d}:{draw.number(0, 59):02d}:30 cron session opened for {draw.pick(users)}"
        )
    lines.sort()
    failures = Counter(address for address, _, ok in entries if not ok)
    suspects = sorted(a for a in addresses if failures[a] >= limit)
    broken_in = {}
    for suspect in suspects:
        seen = 0
        for address, user, ok in entries:
            if address == suspect:
                if ok and seen >= limit:
                    broken_in[suspect] = user
                    break
                seen += not ok
    want = {"failed": sum(failures.values()), "suspects": suspects, "broken_in": broken_in}
    middle = len(lines) // 2
    return ClawTask(
        "logs/auth.log.1 is the older and logs/auth.log the newer part of one log. Write findings.json: failed (how many failed "
        f"password lines there are), suspects (a sorted list of the addresses with at least {limit} failures in all) and broken_in "
        f"(an object: each suspect that had an accepted password after at least {limit} of its failures, with the user of its first "
        "such login).",
        {"logs/auth.log.1": "\n".join(lines[:middle]) + "\n", "logs/auth.log": "\n".join(lines[middle:]) + "\n"},
        [want_json("findings.json", want)],
        f"""import json, re
text = open("logs/auth.log.1").read() + open("logs/auth.log").read()
count, inside, failed = {{}}, {{}}, 0
for verb, user, address in re.findall(r"(accepted|failed) password for (\\S+) from (\\S+)", text):
    if verb == "failed":
        failed += 1
        count[address] = count.get(address, 0) + 1
    elif count.get(address, 0) >= {limit}:
        inside.setdefault(address, user)
suspects = sorted((a for a in count if count[a] >= {limit}))
json.dump({{"failed": failed, "suspects": suspects, "broken_in": inside}}, open("findings.json", "w"))
""",
    )


def doc_cleanup(draw: Draw) -> ClawTask:
    """A document whose headings, list marks, old product name and trailing spaces want one form."""
    old, new = draw.some(PRODUCTS, 2)
    title, parts = draw.pick(PRODUCTS), draw.some(SERVICES, 3)
    before, after = [f"#{title.title()} guide", ""], [f"# {title.title()} guide", ""]
    for part in parts:
        mark = draw.pick(("##", "## ", "##  "))
        before += [f"{mark}{part.title()}", ""]
        after += [f"## {part.title()}", ""]
        sentence = f"Use the {old} of {draw.pick(PEOPLE)} for {part}."
        before.append(sentence + "  " * draw.number(0, 1))
        after.append(sentence.replace(f" {old} ", f" {new} "))
        for _ in range(draw.number(2, 4)):
            item = f"{draw.pick(('check', 'count', 'move'))} {draw.number(2, 90)} of {draw.pick(('them', 'the ' + old + ' parts'))}"
            before.append(f"{draw.pick(('* ', '+ ', '- ', '-  '))}{item}")
            after.append(f"- {item.replace(old, new)}")
        before.append("")
        after.append("")
    code = [f"```\n{old} --list  # keep\n```"]
    old_text, new_text = "\n".join(before + code) + "\n", "\n".join(after + code) + "\n"
    return ClawTask(
        f"Clean up guide.md in place: every heading has exactly one space after its # signs; every list item starts with '- ' (one "
        f"hyphen, one space); no line ends in spaces; the tool called {old} is now called {new} everywhere except inside the code "
        "block at the end, which stays as it is. Change nothing else.",
        {"guide.md": old_text},
        [want_text("guide.md", new_text, old_text)],
        f"""import re
lines, code = [], False
for line in open("guide.md").read().splitlines():
    if line.startswith("```"):
        code = not code
    elif not code:
        line = re.sub(r"^(#+)\\s*", r"\\1 ", line)
        line = re.sub(r"^[*+-]\\s+", "- ", line)
        line = re.sub(r"\\b{old}\\b", "{new}", line).rstrip()
    lines.append(line)
open("guide.md", "w").write("\\n".join(lines) + "\\n")
""",
        may_change=("guide.md",),
    )


REPAIRS: tuple[tuple[str, str, str, str, list[list[object]]], ...] = (
    (
        "late_fee", "the fee is {a} for each started week late, none when not late, at most {b}",
        "def late_fee(days):\n    weeks = days // 7\n    return weeks * {a}\n",
        "def late_fee(days):\n    weeks = -(-max(0, days) // 7)\n    return min({b}, weeks * {a})\n",
        [[0], [-3], [1], [7], [8], [14], [15], [400], [21]],
    ),
    (
        "chunks", "the list cut into pieces of the given size, the last one shorter when needed; an empty list gives no piece",
        "def chunks(items, size):\n    return [items[i:i + size] for i in range(0, len(items) - size, size)]\n",
        "def chunks(items, size):\n    return [items[i:i + size] for i in range(0, len(items), size)]\n",
        [[[1, 2, 3], 2], [[1, 2, 3, 4], 2], [[], 3], [[1], 5], [[1, 2, 3, 4, 5, 6, 7], 3], [[1, 2, 3, 4], 1]],
    ),
    (
        "initials", "the first letters of the words in upper case, each followed by a dot; extra spaces do not count",
        "def initials(name):\n    return ''.join(w[0] + '.' for w in name.split(' '))\n",
        "def initials(name):\n    return ''.join(w[0].upper() + '.' for w in name.split())\n",
        [["Ada Bell"], ["ada bell"], [" Ben  Okafor "], [""], ["x"], ["Mina van Haddad"], ["\tTara\nSingh"]],
    ),
    (
        "median", "the middle of the sorted numbers, the mean of the two middle ones for an even count, {a} for none",
        "def median(numbers):\n    numbers.sort()\n    return numbers[len(numbers) // 2]\n",
        "def median(numbers):\n    s = sorted(numbers)\n    if not s:\n        return {a}\n"
        "    m = len(s) // 2\n    return s[m] if len(s) % 2 else (s[m - 1] + s[m]) / 2\n",
        [[[3, 1, 2]], [[1, 2, 3, 4]], [[]], [[5]], [[2, 1]], [[9, 1, 5, 7, 3]], [[4, 4, 1, 1]]],
    ),
    (
        "parse_size", "bytes as a number from texts such as 12, 3k, 2M (case does not matter; k is 1024, m is 1024 k); spaces around "
        "do not count",
        "def parse_size(text):\n    if text.endswith('k'):\n        return int(text[:-1]) * 1000\n    return int(text)\n",
        "def parse_size(text):\n    t = text.strip().lower()\n    for mark, power in (('k', 1), ('m', 2)):\n"
        "        if t.endswith(mark):\n            return int(t[:-1]) * 1024 ** power\n    return int(t)\n",
        [["12"], ["3k"], ["3K"], ["2M"], [" 7 "], ["1m"], ["0"], [" 4k"]],
    ),
    (
        "moving_mean", "the mean of each {a} neighbouring numbers, in order; none when there are fewer",
        "def moving_mean(numbers):\n    return [sum(numbers[i:i + {a}]) / {a} for i in range(len(numbers))]\n",
        "def moving_mean(numbers):\n    return [sum(numbers[i:i + {a}]) / {a} for i in range(len(numbers) - {a} + 1)]\n",
        [[[1, 2, 3, 4, 5, 6]], [[1]], [[]], [[2, 2, 2, 2]], [[10, 0, 5, 5, 20, 1, 1]], [[1, 3]]],
    ),
)  # fmt: skip


def code_repair(draw: Draw) -> ClawTask:
    """A small Python function that breaks its own description; hidden calls see what is right now."""
    name, meaning, broken, right, arguments = draw.pick(REPAIRS)
    numbers = {"a": draw.number(2, 4), "b": draw.number(20, 40)}
    broken, right, meaning = (text.format(**numbers) for text in (broken, right, meaning))
    module = draw.pick(SERVICES)
    calls = []
    for values in arguments:
        want, got = (_call(source, name, values) for source in (right, broken))
        calls.append({"function": name, "arguments": values, "want": want, "was_wrong": got != want})
    shown = next(c for c in calls if c["was_wrong"])
    test = (
        f"import unittest\n\nfrom {module} import {name}\n\n\nclass Test(unittest.TestCase):\n    def test_one(self):\n"
        f"        self.assertEqual({name}(*{shown['arguments']!r}), {shown['want']!r})\n\n\nif __name__ == '__main__':\n    unittest.main()\n"
    )
    spare = f"def unused_{draw.pick(PRODUCTS)}(x):\n    return x + {draw.number(1, 99)}\n\n\n"
    check: Check = {"name": "calls", "kind": "code", "file": f"{module}.py", "calls": calls, "weight": 1.0}
    return ClawTask(
        f"{name} in {module}.py is wrong; python3 test_{module}.py shows one case. It should return: {meaning}. Repair it for every "
        "input, not only for that test, and leave the test as it is.",
        {f"{module}.py": spare + broken, f"test_{module}.py": test},
        [check],
        f"source = open({module + '.py'!r}).read()\nopen({module + '.py'!r}, 'w').write(source.replace({broken!r}, {right!r}))\n",
        may_change=(f"{module}.py",),
    )


def _call(source: str, name: str, arguments: list[object]) -> object:
    space: dict[str, object] = {}
    exec(source, space)  # our own text, above
    try:
        answer: object = space[name](*json.loads(json.dumps(arguments)))  # type: ignore[operator]
    except Exception as error:  # noqa: BLE001 (whatever the broken function raises is its answer)
        answer = type(error).__name__
    return answer


def release_notes(draw: Draw) -> ClawTask:
    """Notes of one version from a commit log: grouped by kind, breaking changes first, reverted ones left out."""
    kinds = {"feat": "Added", "fix": "Fixed", "docs": "Documentation"}
    commits: list[tuple[str, str, str]] = []
    for _ in range(draw.number(12, 16)):
        number = f"{draw.number(0x10000, 0xFFFFF):05x}"
        kind = draw.pick((*kinds, "fix", "chore"))
        commits.append(
            (
                number,
                kind + draw.pick(("", "", "!")),
                f"{draw.pick(('make', 'keep', 'drop'))} {draw.pick(PRODUCTS)} in {draw.pick(SERVICES)}",
            )
        )
    reverted = {c[0] for c in draw.some(commits, 2)}
    lines = [f"{number} {kind}: {text}" for number, kind, text in commits]
    lines += [f"{draw.number(0x10000, 0xFFFFF):05x} revert: {number}" for number in sorted(reverted)]
    version = f"{draw.number(1, 4)}.{draw.number(0, 9)}.0"
    out = [f"# {version}"]
    groups = [("Breaking", lambda k: k.endswith("!"))]
    groups += [(title, lambda k, kind=kind: k == kind) for kind, title in kinds.items()]  # type: ignore[misc]
    for title, belongs in groups:
        own = sorted(text for number, kind, text in commits if number not in reverted and belongs(kind))
        if own:
            out += ["", f"## {title}", "", *(f"- {text}" for text in own)]
    return ClawTask(
        f"commits.txt has one commit a line: id, kind, text. Write NOTES.md for version {version}: the heading '# {version}', then the "
        "sections '## Breaking' (kinds that end in !, whatever they are), '## Added' (feat), '## Fixed' (fix) and '## Documentation' "
        "(docs), in this order, without those that would be empty; each section is its heading, an empty line and one line '- text' a "
        "commit, sorted by text; an empty line comes before each heading but the first. A commit named by a revert line is left out, and "
        "so are reverts and all other kinds.",
        {"commits.txt": "\n".join(lines) + "\n"},
        [want_text("NOTES.md", "\n".join(out) + "\n")],
        f"""rows = [line.rstrip().split(" ", 2) for line in open("commits.txt")]
gone = {{r[2] for r in rows if r[1] == "revert:"}}
rows = [(k.rstrip(":"), t) for n, k, t in rows if n not in gone and k != "revert:"]
out = "# {version}\\n"
for title, test in (("Breaking", lambda k: k[-1] == "!"), ("Added", lambda k: k == "feat"), ("Fixed", lambda k: k == "fix"), ("Documentation", lambda k: k == "docs")):
    own = sorted(t for k, t in rows if test(k))
    if own:
        out += f"\\n## {{title}}\\n\\n" + "".join(f"- {{t}}\\n" for t in own)
open("NOTES.md", "w").write(out)
""",
    )


def link_check(draw: Draw) -> ClawTask:
    """Links between Markdown pages: which lead nowhere, and which pages nobody links to."""
    names = draw.some(PRODUCTS, 6)
    pages = [f"docs/{n}.md" for n in names]
    linked = draw.some(pages[1:], 3)
    files, broken = {}, []
    for page in pages:
        lines = [f"# {page[5:-3].title()}", ""]
        for number in range(3, 6):
            kind = draw.number(0, 3)
            if kind == 0:
                target = f"{draw.pick(PRODUCTS)}-{draw.number(1, 99)}.md"
                broken.append([page, str(len(lines) + 1), target])
            elif kind == 1:
                target = f"https://{draw.pick(SERVICES)}.example/{number}.md"
            else:
                target = draw.pick([p for p in linked if p != page] or linked)[5:]
            lines.append(f"See [{draw.pick(SERVICES)}]({target}) for part {number}.")
        files[page] = "\n".join(lines) + "\n"
    reached = {f"docs/{p}" for text in files.values() for p in (f"{n}.md" for n in names) if f"]({p})" in text}
    orphans = sorted(p for p in pages if p not in reached)
    broken.sort(key=lambda r: (r[0], int(r[1])))
    if not broken:
        return link_check(draw)
    return ClawTask(
        "The pages in docs link to each other by file name. Links that start with https are fine. Write broken.csv (header "
        "page,line,target; pages written as docs/name.md, sorted by page and line; the first line of a page is line 1) with the links to "
        "pages that do not exist, and orphans.json: a sorted list of the pages (docs/name.md) that no page links to.",
        files,
        [
            want_csv("broken.csv", ["page", "line", "target"], broken, weight=2.0),
            want_json("orphans.json", orphans),
        ],
        """import csv, glob, json, os, re
rows, reached, pages = [], set(), sorted(glob.glob("docs/*.md"))
for page in pages:
    for number, line in enumerate(open(page), 1):
        for target in re.findall(r"\\]\\(([^)]+)\\)", line):
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
""",
    )
