"""Hidden check of a task made from a session: compares the workspace with what the session left, writes reward.json.

expected.json lists files that had to be written (with their text), removed, and left alone; edit it and this file as
the task needs. The workspace is untrusted: no link is followed, nothing in it is run. Standard library only.
"""

import json
import os
import stat

MAX_BYTES = 1 << 20


def read(workspace, path):
    """Bytes of the regular file at `path`; None when absent, a link, odd or too large."""
    *folders, name = path.split("/")
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    opened = []
    try:
        opened.append(os.open(workspace, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
        for folder in folders:
            opened.append(os.open(folder, flags | os.O_DIRECTORY, dir_fd=opened[-1]))
        opened.append(os.open(name, flags, dir_fd=opened[-1]))
        if not stat.S_ISREG(os.fstat(opened[-1]).st_mode):
            return None
        data = os.read(opened[-1], MAX_BYTES + 1)
        return data if len(data) <= MAX_BYTES else None
    except OSError:
        return None
    finally:
        for descriptor in opened:
            os.close(descriptor)


def lines(text):
    """Lines without white space at their ends and without blank lines at the end."""
    return [line.rstrip() for line in text.rstrip().split("\n")]


def written(workspace, path, want):
    """1 for the right text, else the share of its lines that are there, at most a half."""
    data = read(workspace, path)
    if data is None:
        return 0.0
    got, want = lines(data.decode("utf-8", "replace")), lines(want)
    if got == want:
        return 1.0
    return 0.5 * sum(line in got for line in want) / len(want)


def main():
    """Grade and put reward.json in place whole."""
    workspace = os.environ.get("CORRAL_WORKSPACE", "/workspace")
    logs = os.environ.get("CORRAL_VERIFIER_LOGS", "/logs/verifier")
    with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "expected.json"), encoding="utf-8") as file:
        expected = json.load(file)
    before = expected["before"]
    parts = {}
    for path, want in expected["written"].items():
        base = 0.0 if before.get(path) is None else written_share(before[path], want)
        now = written(workspace, path, want)
        parts[f"written {path}"] = max(0.0, (now - base) / (1.0 - base))
    for path in expected["removed"]:
        parts[f"removed {path}"] = float(not os.path.lexists(os.path.join(workspace, path)))
    intact = all(
        (read(workspace, path) or b"").decode("utf-8", "replace") == before[path] for path in expected["untouched"]
    )
    reward = sum(parts.values()) / len(parts) * (1.0 if intact else 0.5)
    draft = os.path.join(logs, f".reward.{os.getpid()}")
    with open(draft, "x", encoding="utf-8") as file:
        json.dump({"reward": reward, "parts": {**parts, "intact": float(intact)}}, file)
    os.replace(draft, os.path.join(logs, "reward.json"))


def written_share(text, want):
    """What an unchanged file would earn, which a null agent must not."""
    got, want = lines(text), lines(want)
    return 0.5 * sum(line in got for line in want) / len(want)


if __name__ == "__main__":
    main()
