"""Hidden check of a claw task: compares the final workspace with expected.json, writes reward.json.

generate.py copies this file into every task's tests/. The workspace is the work of an untrusted agent: no link in it
is followed, only small regular files are read, and the one kind of check that must run the agent's code runs it in a
child that can neither write, start processes nor read the expectations (`run_calls`). Standard library only.
"""

import contextlib
import csv
import io
import json
import os
import re
import resource
import signal
import stat
import subprocess
import sys

MAX_BYTES = 256 * 1024
CODE_S = 4.0
NO_LINKS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def read(workspace, path):
    """Text of the file at `path` in the workspace; None when absent, a link, odd or over MAX_BYTES."""
    *folders, name = path.split("/")
    opened = []
    try:
        opened.append(os.open(workspace, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
        for folder in folders:
            opened.append(os.open(folder, NO_LINKS | os.O_DIRECTORY, dir_fd=opened[-1]))
        opened.append(os.open(name, NO_LINKS, dir_fd=opened[-1]))
        if not stat.S_ISREG(os.fstat(opened[-1]).st_mode):
            return None
        data = os.read(opened[-1], MAX_BYTES + 1)
        return None if len(data) > MAX_BYTES else data.decode("utf-8", "replace")
    except OSError:
        return None
    finally:
        for descriptor in opened:
            os.close(descriptor)


def leaves(value, path=()):
    """{path: scalar} of a JSON value; an empty list or object is a leaf too."""
    if isinstance(value, dict) and value:
        return {k: v for key, item in value.items() for k, v in leaves(item, (*path, key)).items()}
    if isinstance(value, list) and value:
        return {k: v for i, item in enumerate(value) for k, v in leaves(item, (*path, i)).items()}
    return {path: value}


def same(got, want):
    """Equal as scalars: numbers within half a cent, never a bool for a number."""
    if isinstance(want, bool) or isinstance(got, bool):
        return got is want
    if isinstance(want, int | float) and isinstance(got, int | float):
        return abs(got - want) <= 0.005
    return type(got) is type(want) and got == want


def check_json(workspace, check):
    """Share of the wanted leaves that are right; each leaf too many takes one away."""
    text = read(workspace, check["file"])
    try:
        got = leaves(json.loads(text or ""))
    except (ValueError, RecursionError):
        return 0.0
    want = leaves(check["want"])
    right = sum(key in got and same(got[key], value) for key, value in want.items())
    return max(0.0, right - len(got.keys() - want.keys())) / len(want)


def check_csv(workspace, check):
    """Share of the wanted rows that are there (in order where it counts); each row too many takes one away."""
    rows = list(csv.reader(io.StringIO(read(workspace, check["file"]) or "")))
    rows = [[cell.strip() for cell in row] for row in rows if row]
    want = check["rows"]
    if not rows or rows[0] != check["header"]:
        return 0.0
    body = rows[1:]
    if check["ordered"]:
        right = sum(a == b for a, b in zip(body, want, strict=False))
    else:
        left = list(body)
        right = 0
        for row in want:
            if row in left:
                left.remove(row)
                right += 1
    return max(0.0, right - max(0, len(body) - len(want))) / len(want)


def check_text(workspace, check):
    """Share of wanted lines in their places; white space at line ends does not count, the number of lines does."""
    text = read(workspace, check["file"])
    if text is None or text == check.get("before"):
        return 0.0
    got, want = ([line.rstrip() for line in t.rstrip("\n").split("\n")] for t in (text, check["want"]))
    old = [line.rstrip() for line in check.get("before", "").rstrip("\n").split("\n")]
    if "before" in check:  # only what had to change earns, all that had to stay is needed for full credit
        changed = [line for line in want if line not in old]
        kept = [line for line in want if line in old]
        share = sum(line in got for line in changed) / max(1, len(changed))
        whole = got == want
        return 1.0 if whole else 0.5 * share * (sum(line in got for line in kept) / max(1, len(kept)))
    right = sum(a == b for a, b in zip(got, want, strict=False))
    return max(0.0, right - max(0, len(got) - len(want))) / len(want)


def check_gone(workspace, check):
    """Share of the files that are gone, once their new place holds them where one is named."""
    done = 0
    for old, new in check["files"].items():
        gone = not os.path.lexists(os.path.join(workspace, old))
        done += gone and (new is None or read(workspace, new["path"]) == new["text"])
    return done / len(check["files"])


def check_matches(workspace, check):
    """Share of the patterns that the file meets; one that must not be met counts when it is not."""
    text = read(workspace, check["file"])
    if text is None:
        return 0.0
    return sum(bool(re.search(p, text, re.M)) is wanted for p, wanted in check["patterns"]) / len(check["patterns"])


CHILD = """
import json, sys
source, calls = json.loads(sys.stdin.read())
code = compile(source, "answer.py", "exec")
DENIED = ("open", "os.", "subprocess.", "socket.", "ctypes.", "shutil.", "pty.", "fcntl.", "mmap.", "signal.", "import")
ALLOWED = {"math", "re", "datetime", "decimal", "collections", "itertools", "functools", "string", "json", "csv", "io",
           "statistics", "fractions", "operator", "bisect", "heapq", "typing", "dataclasses", "calendar", "textwrap"}
for name in ALLOWED:
    __import__(name)
import datetime, decimal
datetime.datetime.strptime("2020", "%Y")  # imports lazily
def guard(event, args):
    if event == "import" and args[0].split(".")[0] in ALLOWED | set(sys.modules):
        return
    if event.startswith(DENIED):
        raise PermissionError(event)
sys.addaudithook(guard)
space = {"__name__": "answer"}
exec(code, space)
answers = []
for name, arguments in calls:
    try:
        answers.append([True, json.loads(json.dumps(space[name](*arguments)))])
    except BaseException as error:
        answers.append([False, type(error).__name__])
sys.__stdout__.write("\\n" + json.dumps(answers))
sys.__stdout__.flush()
"""


def limit():
    """In the child: no process of its own (for uid > 0), no file content, bounded memory and time."""
    resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (1 << 29, 1 << 29))
    resource.setrlimit(resource.RLIMIT_CPU, (int(CODE_S), int(CODE_S)))


def run_calls(source, calls):
    """What the agent's functions return: [ok, value] a call, or None when the code does not run at all."""
    child = subprocess.Popen(
        [sys.executable, "-I", "-S", "-B", "-c", CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL, preexec_fn=limit,  # noqa: PLW1509 (this process has no threads)
        start_new_session=True, cwd="/", env={},
    )  # fmt: skip
    try:
        out, _ = child.communicate(json.dumps([source, calls]).encode(), CODE_S)
        return json.loads(out.decode("utf-8", "replace").rpartition("\n")[2])
    except (subprocess.TimeoutExpired, ValueError, OSError):
        return None
    finally:
        with contextlib.suppress(OSError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()


def check_code(workspace, check):
    """Share of the hidden calls that were wrong before and are right now; halved when one that was right broke."""
    source = read(workspace, check["file"])
    answers = run_calls(source, [[c["function"], c["arguments"]] for c in check["calls"]]) if source else None
    if not isinstance(answers, list) or len(answers) != len(check["calls"]):
        return 0.0
    right = [a[0] is True and deep_same(a[1], c["want"]) for a, c in zip(answers, check["calls"], strict=True)]
    repaired = [ok for ok, c in zip(right, check["calls"], strict=True) if c["was_wrong"]]
    kept = all(ok for ok, c in zip(right, check["calls"], strict=True) if not c["was_wrong"])
    return sum(repaired) / len(repaired) * (1.0 if kept else 0.5)


def deep_same(got, want):
    """Equal as JSON values, numbers within half a cent."""
    a, b = leaves(got), leaves(want)
    return a.keys() == b.keys() and all(same(a[k], b[k]) for k in b)


CHECKS = {
    "json": check_json,
    "csv": check_csv,
    "text": check_text,
    "gone": check_gone,
    "matches": check_matches,
    "code": check_code,
}


def grade(workspace, expected):
    """(reward, parts): the weighted checks, halved when a file that had to stay was changed or lost."""
    parts = {}
    for check in expected["checks"]:
        parts[check["name"]] = round(CHECKS[check["kind"]](workspace, check), 6)
    weights = {check["name"]: check["weight"] for check in expected["checks"]}
    score = sum(weights[name] * credit for name, credit in parts.items()) / sum(weights.values())
    parts["intact"] = float(all(read(workspace, path) == text for path, text in expected["intact"].items()))
    return score * (0.5 + 0.5 * parts["intact"]), parts


def main():
    """Grade the workspace and put reward.json in place whole, over whatever may lie there."""
    workspace = os.environ.get("CORRAL_WORKSPACE", "/workspace")
    logs = os.environ.get("CORRAL_VERIFIER_LOGS", "/logs/verifier")
    with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "expected.json"), encoding="utf-8") as file:
        expected = json.load(file)
    reward, parts = grade(workspace, expected)
    draft = os.path.join(logs, f".reward.{os.getpid()}")
    with open(draft, "x", encoding="utf-8") as file:
        json.dump({"reward": reward, "parts": parts}, file)
    os.replace(draft, os.path.join(logs, "reward.json"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
