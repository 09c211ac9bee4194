"""Write the pocket pack: small file-and-shell tasks, the same bytes for the same seed on every machine.

    python data/pocket/generate.py --out DIR           # all 304 tasks, as `corral` generates them for itself
    python data/pocket/generate.py --seed 7 --out DIR  # another draw, for example for more teaching
    python data/pocket/generate.py                     # rewrites samples/: the first task of each family

Fourteen families; eleven have lessons, train and held-out instances, three are held out whole (data/demo.toml names
those that it uses). A lesson is an easy instance, on which a shortcut that ignores the condition works as well as the
careful way: the teacher plays the careful way in even lessons and the shortcut in odd ones, as success-filtered
demonstrations do in life. On train and held-out instances the shortcut fails, so practice has something to
teach. Every file-name stem, extension, key and value is a word of words.txt, and no word has two meanings within a
task. No word of the pool is part of another, so that "contains" means one thing. A family is one function below: it
draws words and returns the task, its teacher's commands, its oracle and what its hidden check expects.
Standard library only; random.Random is used through shuffle and randrange alone, which are stable.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).resolve().parent
NUM_LESSONS, NUM_TRAIN, NUM_HELD_OUT = 8, 12, 6

Files = dict[str, str]
Expected = dict[str, object]


class Draw:
    """The random choices of one task; a word is never given twice."""

    def __init__(self, seed: str, words: list[str]) -> None:
        self._random = random.Random(seed)
        self._words = list(words)
        self._random.shuffle(self._words)

    def word(self) -> str:
        """The next unused word."""
        return self._words.pop()

    def words(self, count: int) -> list[str]:
        """`count` unused words."""
        return [self.word() for _ in range(count)]

    def number(self, low: int, high: int) -> int:
        """A number from `low` to `high`, both included."""
        return self._random.randrange(low, high + 1)

    def shuffled(self, items: list[str]) -> list[str]:
        """`items` in random order."""
        items = list(items)
        self._random.shuffle(items)
        return items

    def settings(self, count: int) -> list[str]:
        """`count` lines `key=value`."""
        return [f"{self.word()}={self.word()}" for _ in range(count)]

    def lines(self, count: int) -> list[str]:
        """`count` lines of two words."""
        return [" ".join(self.words(2)) for _ in range(count)]

    def lines_with(self, word: str, count: int) -> list[str]:
        """`count` lines of two words, one of which is `word`."""
        return [" ".join(self.shuffled([word, self.word()])) for _ in range(count)]


@dataclass(frozen=True)
class PocketTask:
    """One task before it is written. `solve` is the oracle where it is not simply the careful commands."""

    instruction: str
    files: Files
    careful: list[str]
    shortcut: list[str]
    expected: Expected
    solve: list[str] = field(default_factory=list)


def text(lines: list[str]) -> str:
    """The lines as a file."""
    return "".join(f"{line}\n" for line in lines)


def answer(file: str, want: str, near: dict[str, float], files: Files) -> Expected:
    """Expectation of a task that writes one file; `near` gives part of the credit for near misses."""
    return {"kind": "answer", "file": file, "want": want, "near": near, "files": files}


def moves(new_paths: dict[str, str | None], files: Files) -> Expected:
    """Expectation of a task that moves files, or removes them where the new path is None."""
    return {"kind": "moves", "moves": new_paths, "files": files}


def find_value(draw: Draw, is_easy: bool) -> PocketTask:
    """Read a value out of a folder of settings: what to write is known only after looking."""
    folder = draw.word()
    num_files, num_lines = (1, 1) if is_easy else (4, 3)
    stems = draw.words(num_files)
    settings = {f"{folder}/{stem}.conf": draw.settings(num_lines) for stem in stems}
    files = {path: text(lines) for path, lines in settings.items()}
    path = f"{folder}/{stems[draw.number(0, num_files - 1)]}.conf"
    line = settings[path][draw.number(0, num_lines - 1)]
    key, value = line.split("=")
    return PocketTask(
        f"Find the value of {key} in the files under {folder} and write it to answer.txt.",
        files,
        [f"grep -rh ^{key}= {folder}", f"echo {value} > answer.txt"],
        [f"cut -d= -f2 {folder}/* > answer.txt"],
        answer("answer.txt", value, {line: 0.5, f"{path}:{line}": 0.5}, files),
        [f"grep -rh ^{key}= {folder} | cut -d= -f2 > answer.txt"],
    )


def edit_key(draw: Draw, is_easy: bool) -> PocketTask:
    """Change one setting and nothing else; a second file holds the same key and must stay."""
    stem, other = draw.words(2)
    key, old, new = draw.words(3)
    mine = draw.shuffled([*draw.settings(0 if is_easy else 3), f"{key}={old}"])
    theirs = draw.shuffled([*draw.settings(2), f"{key}={draw.word()}"])
    files = {f"{stem}.conf": text(mine), f"{other}.conf": text(theirs)}
    change = {"file": f"{stem}.conf", "old": f"{key}={old}", "new": f"{key}={new}"}
    return PocketTask(
        f"Set {key} to {new} in {stem}.conf.",
        files,
        [f"sed -i s/^{key}=.*/{key}={new}/ {stem}.conf"],
        [f"echo {key}={new} > {stem}.conf"],
        {"kind": "edit", **change, "files": files},
    )


def rename(draw: Draw, is_easy: bool) -> PocketTask:
    """Change one extension throughout a folder; files with another extension must stay."""
    folder, before, after, other = draw.words(4)
    old = [f"{folder}/{stem}" for stem in draw.words(draw.number(2, 3))]
    names = [f"{stem}.{before}" for stem in old] + [
        f"{folder}/{stem}.{other}" for stem in draw.words(0 if is_easy else 3)
    ]
    files = {name: text(draw.lines(2)) for name in names}
    loop = f"for f in {folder}/*.{before}; do mv $f ${{f%.{before}}}.{after}; done"
    return PocketTask(
        f"Rename every .{before} file in {folder} so that it ends in .{after}.",
        files,
        [loop],
        [f"for f in {folder}/*; do mv $f ${{f%.*}}.{after}; done"],
        moves({f"{stem}.{before}": f"{stem}.{after}" for stem in old}, files),
    )


def log_file(draw: Draw, word: str, is_easy: bool = False) -> tuple[list[str], list[str]]:
    """Lines of a log, and those among them that contain `word`: at least one; all only in an easy one."""
    others = [] if is_easy else draw.lines(draw.number(3, 5))
    lines = draw.shuffled(draw.lines_with(word, draw.number(2, 5)) + others)
    return lines, [line for line in lines if word in line.split()]


def count(draw: Draw, is_easy: bool) -> PocketTask:
    """Count lines by a condition."""
    stem, word = draw.words(2)
    lines, hits = log_file(draw, word, is_easy)
    files = {f"{stem}.log": text(lines)}
    return PocketTask(
        f"Count the lines of {stem}.log that contain {word} and write the number to answer.txt.",
        files,
        [f"grep -c {word} {stem}.log > answer.txt"],
        [f"wc -l < {stem}.log > answer.txt"],
        answer("answer.txt", str(len(hits)), {text(hits): 0.3, f"{len(hits)} {stem}.log": 0.5}, files),
    )


def join(draw: Draw, is_easy: bool) -> PocketTask:
    """Write a file from two others; the right lines in the wrong order are a near miss."""
    first, second, target = draw.words(3)
    if (first < second) != is_easy:  # the shortcut joins in the order of the alphabet
        first, second = second, first
    one, two = text(draw.lines(draw.number(2, 3))), text(draw.lines(draw.number(2, 3)))
    files = {f"{first}.txt": one, f"{second}.txt": two}
    return PocketTask(
        f"Write {first}.txt followed by {second}.txt to {target}.txt.",
        files,
        [f"cat {first}.txt {second}.txt > {target}.txt"],
        [f"cat *.txt > {target}.txt"],
        answer(f"{target}.txt", one + two, {two + one: 0.3}, files),
    )


def folder_with(draw: Draw, folder: str, word: str, is_easy: bool = False) -> tuple[list[str], Files]:
    """Six files, of which two or three (in an easy one: all of three) contain `word`; their names come first."""
    names = [f"{folder}/{stem}.txt" for stem in draw.words(3 if is_easy else 6)]
    hits = names if is_easy else names[: draw.number(2, 3)]
    files = {name: text(draw.lines(2)) for name in names}
    for name in hits:
        files[name] = text(draw.shuffled(draw.lines_with(word, 1) + draw.lines(1)))
    return hits, files


def move(draw: Draw, is_easy: bool) -> PocketTask:
    """Move files by what they hold; the target folder may already exist."""
    folder, word, target = draw.words(3)
    hits, files = folder_with(draw, folder, word, is_easy)
    if draw.number(0, 1):
        files[f"{target}/{draw.word()}.txt"] = text(draw.lines(2))
    return PocketTask(
        f"Move every file in {folder} that contains {word} to {target}.",
        files,
        [f"mkdir -p {target}; mv $(grep -l {word} {folder}/*) {target}"],
        [f"mkdir -p {target}; mv {folder}/* {target}"],
        moves({name: f"{target}/{name.split('/')[1]}" for name in hits}, files),
    )


def extract(draw: Draw, is_easy: bool) -> PocketTask:
    """Write the lines that meet a condition; the whole file is a near miss."""
    stem, word, target = draw.words(3)
    lines, hits = log_file(draw, word)
    files = {f"{stem}.log": text(lines)}
    return PocketTask(
        f"Write the lines of {stem}.log that contain {word} to {target}.txt.",
        files,
        [f"grep {word} {stem}.log > {target}.txt"],
        [f"cp {stem}.log {target}.txt"],
        answer(f"{target}.txt", text(hits), {text(lines): 0.3}, files),
    )


def remove(draw: Draw, is_easy: bool) -> PocketTask:
    """Remove files by what they hold, and no others."""
    folder, word = draw.words(2)
    hits, files = folder_with(draw, folder, word)
    return PocketTask(
        f"Remove every file in {folder} that contains {word}.",
        files,
        [f"rm $(grep -l {word} {folder}/*)"],
        [f"rm {folder}/*"],
        moves(dict.fromkeys(hits), files),
    )


def out_of_order(draw: Draw, lines: list[str]) -> list[str]:
    """The lines in a random order that is not the alphabet's."""
    shuffled = draw.shuffled(lines)
    while shuffled == sorted(lines):
        shuffled = draw.shuffled(lines)
    return shuffled


def sort(draw: Draw, is_easy: bool) -> PocketTask:
    """Put the lines of a file in order; in an easy one they are."""
    stem, target = draw.words(2)
    lines = sorted(draw.words(draw.number(4, 6)))
    files = {f"{stem}.txt": text(lines if is_easy else out_of_order(draw, lines))}
    return PocketTask(
        f"Write the lines of {stem}.txt in alphabetical order to {target}.txt.",
        files,
        [f"sort {stem}.txt > {target}.txt"],
        [f"cp {stem}.txt {target}.txt"],
        answer(f"{target}.txt", text(lines), {}, files),
    )


def last(draw: Draw, is_easy: bool) -> PocketTask:
    """Write the last line of a file; an easy one has no other."""
    stem, target = draw.words(2)
    lines = draw.lines(1 if is_easy else draw.number(3, 5))
    files = {f"{stem}.log": text(lines)}
    near = {} if is_easy else {text(lines): 0.3, lines[0]: 0.3}
    return PocketTask(
        f"Write the last line of {stem}.log to {target}.txt.",
        files,
        [f"tail -n 1 {stem}.log > {target}.txt"],
        [f"cp {stem}.log {target}.txt"],
        answer(f"{target}.txt", lines[-1], near, files),
    )


def unique(draw: Draw, is_easy: bool) -> PocketTask:
    """Write every line of a file once, in order; in an easy one none comes twice."""
    stem, target = draw.words(2)
    lines = sorted(draw.words(draw.number(3, 5)))
    again = [] if is_easy else draw.shuffled(lines)[: draw.number(2, 3)]
    repeated = out_of_order(draw, lines + again)
    files = {f"{stem}.log": text(repeated)}
    near = {} if is_easy else {text(sorted(repeated)): 0.3}
    return PocketTask(
        f"Write every different line of {stem}.log once, in alphabetical order, to {target}.txt.",
        files,
        [f"sort -u {stem}.log > {target}.txt"],
        [f"sort {stem}.log > {target}.txt"],
        answer(f"{target}.txt", text(lines), near, files),
    )


def paths(draw: Draw, is_easy: bool) -> PocketTask:
    """Write which files of a folder hold a word; their names without the folder are a near miss."""
    folder, word, target = draw.words(3)
    hits, files = folder_with(draw, folder, word, is_easy)
    want, names = sorted(hits), sorted(path.split("/")[1] for path in hits)
    near = {text(names): 0.5} | ({} if is_easy else {text(sorted(files)): 0.3})
    return PocketTask(
        f"Write the paths of the files in {folder} that contain {word} to {target}.txt.",
        files,
        [f"grep -l {word} {folder}/* > {target}.txt"],
        [f"ls {folder}/* > {target}.txt"],
        answer(f"{target}.txt", text(want), near, files),
    )


def drop(draw: Draw, is_easy: bool) -> PocketTask:
    """Delete lines in place; a second file holds the same word and must stay."""
    stem, other, word = draw.words(3)
    lines, hits = log_file(draw, word, is_easy)
    theirs = {f"{other}.log": text(log_file(draw, word)[0])}
    return PocketTask(
        f"Delete the lines of {stem}.log that contain {word}.",
        {f"{stem}.log": text(lines), **theirs},
        [f"sed -i /{word}/d {stem}.log"],
        [f"truncate -s 0 {stem}.log"],
        answer(f"{stem}.log", text([line for line in lines if line not in hits]), {}, theirs),
    )


def exclude(draw: Draw, is_easy: bool) -> PocketTask:
    """Write the lines that do not meet a condition; the whole file is a near miss."""
    stem, word, target = draw.words(3)
    lines, hits = log_file(draw, word)
    files = {f"{stem}.log": text(lines)}
    return PocketTask(
        f"Write the lines of {stem}.log without {word} to {target}.txt.",
        files,
        [f"grep -v {word} {stem}.log > {target}.txt"],
        [f"cp {stem}.log {target}.txt"],
        answer(f"{target}.txt", text([line for line in lines if line not in hits]), {text(lines): 0.3}, files),
    )


TRAIN_FAMILIES: dict[str, Callable[[Draw, bool], PocketTask]] = {
    "find-value": find_value,
    "edit-key": edit_key,
    "rename": rename,
    "count": count,
    "join": join,
    "move": move,
    "sort": sort,
    "last": last,
    "unique": unique,
    "paths": paths,
    "drop": drop,
}
HELD_OUT_FAMILIES: dict[str, Callable[[Draw, bool], PocketTask]] = {
    "extract": extract,
    "remove": remove,
    "exclude": exclude,
}

TASK_TOML = """\
schema_version = "1.1"

[task]
name = "corral/{name}"

[metadata]
family = "{family}"
split = "{split}"

[agent]
timeout_sec = 60.0

[verifier]
timeout_sec = 20.0
"""

TEST_SH = """\
#!/bin/bash
# Grades the final workspace. The folders are variables so that a test can grade without a container.
exec python3 -I -S -B "${CORRAL_TESTS:-/tests}/check.py"
"""

SOLVE_SH = """\
#!/bin/bash
set -e
cd "${{CORRAL_WORKSPACE:-/workspace}}"
{commands}
"""


def plan(num_lessons: int, num_train: int, num_held_out: int) -> Iterator[tuple[str, str, str]]:
    """(name, family, split) of every task: lessons, then train, then held-out."""
    for family in TRAIN_FAMILIES:
        yield from ((f"{family}-lesson-{i:02d}", family, "lesson") for i in range(num_lessons))
        yield from ((f"{family}-train-{i:02d}", family, "train") for i in range(num_train))
    for family in (*TRAIN_FAMILIES, *HELD_OUT_FAMILIES):
        yield from ((f"{family}-held-{i:02d}", family, "held-out") for i in range(num_held_out))


def draw_task(seed: int, name: str, family: str, words: list[str], seen: set[str]) -> PocketTask:
    """The task called `name`; drawn again while its instruction is already `seen`."""
    for attempt in range(100):
        make = {**TRAIN_FAMILIES, **HELD_OUT_FAMILIES}[family]
        task = make(Draw(f"pocket/{seed}/{name}/{attempt}", words), "-lesson-" in name)
        if task.instruction not in seen:
            seen.add(task.instruction)
            return task
    raise ValueError(f"{name}: no unused instruction after 100 draws; ask for fewer tasks")


def write_task(folder: Path, task: PocketTask, family: str, split: str) -> None:
    """Write one task in Harbor's layout."""
    commands = "\n".join(task.solve or task.careful)
    is_shortcut = split == "lesson" and int(folder.name[-2:]) % 2 == 1
    contents = {
        "task.toml": TASK_TOML.format(name=folder.name, family=family, split=split),
        "instruction.md": f"{task.instruction}\n",
        "solution/solve.sh": SOLVE_SH.format(commands=commands),
        "solution/teacher.json": json.dumps(task.shortcut if is_shortcut else task.careful) + "\n",
        "tests/test.sh": TEST_SH,
        "tests/check.py": (HERE / "check.py").read_text(encoding="utf-8"),
        "tests/expected.json": json.dumps(task.expected, indent=1) + "\n",
        **{f"environment/files/{path}": body for path, body in task.files.items()},
    }
    for path, body in contents.items():
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(body, encoding="utf-8", newline="\n")


def write_pack(
    out: Path, seed: int, counts: tuple[int, int, int] = (NUM_LESSONS, NUM_TRAIN, NUM_HELD_OUT)
) -> list[str]:
    """Write every task under `out` (replacing those of the same name) and return their names.

    `counts`: lessons, train and held-out tasks a family.
    """
    words = (HERE / "words.txt").read_text(encoding="utf-8").split()
    seen: set[str] = set()
    names = []
    for name, family, split in plan(*counts):
        shutil.rmtree(out / name, ignore_errors=True)
        write_task(out / name, draw_task(seed, name, family, words, seen), family, split)
        names.append(name)
    return names


def write_samples() -> list[str]:
    """Write the first task of each family, as the whole pack has it, under samples/ and return their names."""
    first = {
        family: name
        for name, family, split in reversed([*plan(NUM_LESSONS, NUM_TRAIN, NUM_HELD_OUT)])
        if split != "lesson"
    }
    shutil.rmtree(HERE / "samples", ignore_errors=True)
    with tempfile.TemporaryDirectory() as whole:
        write_pack(Path(whole), seed=0)
        for name in first.values():
            shutil.copytree(Path(whole, name), HERE / "samples" / name)
    return sorted(first.values())


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description="Write the pocket task pack.")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="folder for all tasks; without it only samples/ is rewritten")
    parser.add_argument("--lessons", type=int, default=NUM_LESSONS, help="lessons a family")
    parser.add_argument("--train", type=int, default=NUM_TRAIN, help="train tasks a family")
    parser.add_argument("--held-out", type=int, default=NUM_HELD_OUT, help="held-out tasks a family")
    options = parser.parse_args()
    if options.out is None:
        print(f"{len(write_samples())} tasks written to {HERE / 'samples'}")
        return
    names = write_pack(options.out, options.seed, (options.lessons, options.train, options.held_out))
    shutil.copyfile(HERE / "words.txt", options.out / "words.txt")  # the cold start renames lessons with them
    print(f"{len(names)} tasks written to {options.out}")


if __name__ == "__main__":
    main()
