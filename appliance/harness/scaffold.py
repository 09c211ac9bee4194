"""A harness file from a few answers: what to install, how to call it, what it speaks. Text in, text out.

The text is read back by the same strict reader as any other file before it is kept, so a wrong answer is named at once.
"""

from __future__ import annotations

import json
import re
import shlex
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from appliance.errors import HarnessFileError
from appliance.harness.harness import NAME, Harness

PIP = re.compile(r"pip:([A-Za-z0-9._-]+)(\[[A-Za-z0-9._,-]+\])?==([A-Za-z0-9.+!-]+)")
NPM = re.compile(r"npm:((?:@[a-z0-9._-]+/)?[a-z0-9._-]+)@([0-9][A-Za-z0-9.+-]*)")

PIP_LAYER = """
FROM {{base}} AS build
RUN . /run/host/env && python3 -m venv /opt/{name} && /opt/{name}/bin/pip install --no-cache-dir --quiet {what}
FROM {{base}}
COPY --from=build /opt/{name} /opt/{name}
RUN cd /opt/{name}/bin && if [ -e {program} ]; then ln -s "$PWD"/{program} /usr/local/bin/; fi
"""
NPM_LAYER = """
FROM {{node}} AS build
RUN . /run/host/env && npm install --prefix /opt/{name} --no-audit --no-fund --loglevel=error {what}
FROM {{node}}
COPY --from=build /opt/{name} /opt/{name}
RUN cd /opt/{name}/node_modules/.bin && if [ -e {program} ]; then ln -s "$PWD"/{program} /usr/local/bin/; fi
"""


@dataclass(frozen=True, slots=True)
class Answers:
    """What a user says about a harness. `install` is pip:NAME==VERSION, npm:NAME@VERSION, or empty for a `layer`.

    `command` is one shell-quoted line with {prompt}, {base_url}, {token} and {model}; `files` path under HOME → text.
    """

    name: str
    wire: str
    command: str
    install: str = ""
    layer: str = ""
    version: str = ""
    check: str = ""
    env: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    memory_mb: int = 1000
    pids: int = 256


def harness_text(answers: Answers) -> str:
    """The TOML text of a harness file; HarnessFileError names the answer that cannot be used."""
    try:
        argv = shlex.split(answers.command)
    except ValueError as error:
        raise HarnessFileError(f"command: {answers.command!r}: {error}", "quote it as a shell would") from error
    if not argv:
        raise HarnessFileError("command: is empty", "write for example 'mytool --url {base_url}/v1 \"{prompt}\"'")
    if not NAME.fullmatch(answers.name):
        raise HarnessFileError(f"name: {answers.name!r} cannot name a harness", f"it must match {NAME.pattern}")
    layer, version, check = _image(answers, argv[0])
    lines = [f"# {answers.name}: written by `corral harness new`; docs/harnesses.md explains every key."]
    lines += [f"name = {_quoted(answers.name)}", f"version = {_quoted(version)}", f"wire = {_quoted(answers.wire)}", ""]
    lines += ["[image]", f"check = {_list(check)}", f"layer = '''{layer}'''", ""]
    lines += ["[launch]", f"argv = {_list(argv)}", "", "[launch.env]"]
    lines += [f"{_quoted(key)} = {_quoted(value)}" for key, value in answers.env.items()]
    lines += ["", "[files]", *(f"{_quoted(key)} = {_quoted(value)}" for key, value in answers.files.items())]
    lines += ["", "[limits]", f"memory_mb = {answers.memory_mb}", f"pids = {answers.pids}", ""]
    return "\n".join(lines)


def write_harness(answers: Answers, folder: Path) -> Path:
    """Write NAME.toml into `folder`, once it has been read back without an error; never over another file."""
    text = harness_text(answers)
    target = folder / f"{answers.name}.toml"
    with tempfile.TemporaryDirectory(prefix="corral-harness-") as place:
        draft = Path(place) / target.name
        draft.write_text(text, encoding="utf-8")
        try:
            Harness.from_file(draft)
        except HarnessFileError as error:
            raise HarnessFileError(error.message.replace(f"{draft}: ", ""), error.remedy) from error
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with target.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError as error:
        raise HarnessFileError(f"{target}: exists", "choose another name, or edit that file") from error
    return target


def _image(answers: Answers, program: str) -> tuple[str, str, list[str]]:
    """(layer, version, check) of the answers."""
    own = shlex.split(answers.check)
    if answers.layer:
        if not answers.version or not own:
            raise HarnessFileError("a layer of your own needs version and check", "say what prints the version")
        return f"\n{answers.layer.strip()}\n", answers.version, own
    if pip := PIP.fullmatch(answers.install):
        name, extras, version = pip[1], pip[2] or "", pip[3]
        layer = PIP_LAYER.format(name=answers.name, program=program, what=shlex.quote(f"{name}{extras}=={version}"))
        look = f"import importlib.metadata as m; print(m.version({name!r}))"
        return layer, answers.version or version, own or [f"/opt/{answers.name}/bin/python", "-c", look]
    if npm := NPM.fullmatch(answers.install):
        layer = NPM_LAYER.format(name=answers.name, program=program, what=shlex.quote(f"{npm[1]}@{npm[2]}"))
        return layer, answers.version or npm[2], own or [program, "--version"]
    raise HarnessFileError(
        f"install: {answers.install!r} is not a pinned package", "write pip:NAME==VERSION or npm:NAME@VERSION"
    )


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _list(texts: list[str]) -> str:
    return f"[{', '.join(map(_quoted, texts))}]"
