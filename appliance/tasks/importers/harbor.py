"""Tasks of Harbor (schema 1.0 to 1.4) and of terminal-bench 1 on their way into a pack in our layout.

Honoured: names, time limits, files, tests, solution, and a Dockerfile: of one that only places files nothing else is
needed here, any other is kept to be built when that was asked for (`Dockerfiles`). The folder that it works in is our
workspace, so mentions of it are replaced. `harbor_steps` reads steps; MCP servers that can be inside a sandbox are
kept. Refused with the reason: what needs a network or further services. Everything else is noted.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Sequence
from dataclasses import replace
from enum import StrEnum
from pathlib import Path

import yaml

from appliance.tasks.importers.draft import (
    OUR_WORKSPACE,
    Draft,
    Refused,
    Table,
    mentions_of,
    moved_text,
    one_line,
    plain_files,
    safe_path,
    seconds_in,
    small_text,
    table_in,
    task_name,
)
from appliance.tasks.importers.harbor_steps import check_toml, harbor_steps
from appliance.tasks.mcp import KNOWN, McpServer, read_servers

HONOURED = {
    "": {"schema_version", "version", "task", "metadata", "agent", "verifier", "environment", "solution", "source",
         "steps", "multi_step_reward_strategy"},
    "agent": {"timeout_sec"},
    "verifier": {"timeout_sec"},
    "environment": {"build_timeout_sec", "network_mode", "allow_internet", "os", "healthcheck", "workdir",
                    "mcp_servers"},
    "solution": set(),
}  # fmt: skip
NEWEST = (1, 4)
COPIES = re.compile(r"^(?:COPY|ADD)\s+(?P<flags>(?:--\S+\s+)*)(?P<rest>\S.*)$", re.I)
HARMLESS = re.compile(r"^(FROM|WORKDIR|LABEL|#|$)", re.I)


FROM_LINE = re.compile(r"^(\s*FROM\s+(?:--platform=\S+\s+)?)(\S+)(.*)$", re.I | re.M)
STAGE = re.compile(r"^\s*FROM\s.*\sAS\s+(\S+)\s*$", re.I | re.M)
WORKDIR = re.compile(r"^\s*WORKDIR\s+(/\S+?)/?\s*$", re.I | re.M)


class Dockerfiles(StrEnum):
    """What becomes of a Dockerfile that does more than place files."""

    PLACE = "place"  # only its files are placed; the image is ours
    KEEP = "keep"  # kept as it is, to be built by `corral images build --pack`: the image it starts from must be here
    REBASE = "rebase"  # the same, starting from our own base image


def harbor_task(folder: Path, dockerfiles: Dockerfiles = Dockerfiles.PLACE) -> Draft:
    """A Harbor task folder."""
    document: Table = tomllib.loads(small_text(folder / "task.toml"))
    _refuse_what_cannot_be(folder, document)
    tables = {
        name: table_in(document, name) for name in ("task", "metadata", "agent", "verifier", "environment", "solution")
    }
    times = (seconds_in(tables["agent"], "agent.timeout_sec"), seconds_in(tables["verifier"], "verifier.timeout_sec"))
    steps = harbor_steps(folder, document, times)
    text, files, more = ("", steps.files, list(steps.notes)) if steps else _of_one(folder)
    placed, notes = _placed(folder / "environment", dockerfiles)
    files |= placed
    mentions = _other_workspace(folder / "environment", tables["environment"])
    servers, said = _servers(tables["environment"], mentions)
    if mentions:
        text = mentions.sub(OUR_WORKSPACE, text)
        ours = ("tests/", "solution/", "steps/", "environment/Dockerfile", *_run_by(servers))
        files = {path: moved_text(file, mentions) if path.startswith(ours) else file for path, file in files.items()}
        more.append(f"its working folder is {OUR_WORKSPACE} here: the path was replaced in instruction and scripts")
    found = (tables["metadata"].get(key) for key in ("family", "category"))
    family = next((value for value in found if isinstance(value, str) and value.strip()), "harbor")
    tables_toml = check_toml(tables["environment"], "environment.healthcheck", "environment.healthcheck")
    tables_toml += steps.tables if steps else ""
    return Draft(
        _name(tables["task"], folder), one_line(family), text, files, (*_notes(document), *notes, *more, *said), times,
        head=steps.head if steps else "", tables=mentions.sub(OUR_WORKSPACE, tables_toml) if mentions else tables_toml,
        mcp_servers=servers,
    )  # fmt: skip


def _servers(table: Table, mentions: re.Pattern[str] | None) -> tuple[tuple[McpServer, ...], list[str]]:
    """The MCP servers with the places of another workspace replaced by ours, and notes; PackError refuses the task."""
    entries = table.get("mcp_servers", [])
    listed = entries if isinstance(entries, list) else []
    unused = sorted({key for entry in listed if isinstance(entry, dict) for key in entry} - set(KNOWN))
    known = [{k: v for k, v in e.items() if k in KNOWN} if isinstance(e, dict) else e for e in listed]
    servers = read_servers(Path("task.toml"), known if isinstance(entries, list) else entries)
    notes = [f"environment.mcp_servers.{key} is not used" for key in unused]
    notes += [
        f"the MCP server {s.name} is there only if something in the sandbox serves {s.url}" for s in servers if s.url
    ]
    if mentions:
        moved = mentions.sub
        servers = tuple(
            replace(s, command=moved(OUR_WORKSPACE, s.command), args=tuple(moved(OUR_WORKSPACE, a) for a in s.args))
            for s in servers
        )
    return servers, notes


def _run_by(servers: Sequence[McpServer]) -> tuple[str, ...]:
    """The files of the workspace that are servers' own scripts."""
    below = f"{OUR_WORKSPACE}/"
    words = (word for server in servers for word in (server.command, *server.args))
    return tuple(f"environment/files/{word.removeprefix(below)}" for word in words if word.startswith(below))


Files = dict[str, bytes | Path]


def _of_one(folder: Path) -> tuple[str, Files, list[str]]:
    """(instruction, files, notes) of a task without steps."""
    instruction = folder / "instruction.md"
    if not instruction.is_file():
        raise Refused("instruction.md is missing")
    files: Files = {}
    for part in ("tests", "solution"):
        files |= {f"{part}/{path}": file for path, file in plain_files(folder / part)}
    if "tests/test.sh" not in files:
        raise Refused("tests/test.sh is missing")
    return small_text(instruction).strip(), files, []


def _name(table: Table, folder: Path) -> str:
    """Harbor's org/name without its organisation, or the folder's name."""
    name = table.get("name", folder.name)
    if not isinstance(name, str) or name.count("/") > 1 or ".." in name:
        raise Refused(f"task.toml: task.name: {name!r} is not a name, nor an organisation and a name")
    return task_name(name.rpartition("/")[2])


def _refuse_what_cannot_be(folder: Path, document: Table) -> None:
    environment = table_in(document, "environment")
    mode = environment.get("network_mode")
    if mode not in (None, "none", "no-network"):
        raise Refused(f"environment.network_mode is {mode!r}: a sandbox here has no network")
    if environment.get("allow_internet", False) is not False and mode is None:
        asked = environment["allow_internet"]
        raise Refused(f"environment.allow_internet is {str(asked).lower()}: a sandbox here has no network")
    if environment.get("os") not in (None, "linux"):
        raise Refused(f"environment.os is {environment['os']!r}: a sandbox here is Linux")
    if document.get("mcp_servers"):
        raise Refused("mcp_servers stands outside [environment], where Harbor has it")
    for name in ("docker-compose.yaml", "docker-compose.yml"):
        if (folder / "environment" / name).is_file():
            raise Refused(f"environment/{name} starts further services")
    if environment.get("docker_image"):
        raise Refused(f"environment.docker_image {environment['docker_image']!r} is fetched from a registry")


def _notes(document: Table) -> list[str]:
    notes = []
    version = str(document.get("schema_version", document.get("version", "1.0")))
    numbers = re.fullmatch(r"(\d+)\.(\d+)", version)
    if numbers is None or (int(numbers[1]), int(numbers[2])) > NEWEST:
        notes.append(f"schema_version {version} is not known here: it was read as {NEWEST[0]}.{NEWEST[1]}")
    if table_in(document, "environment").get("healthcheck"):
        notes.append("environment.healthcheck is run before the agent; no ENTRYPOINT or CMD of its image is")
    for name, known in HONOURED.items():
        table = document if not name else table_in(document, name)
        left = sorted(str(key) for key in table.keys() - known - {"mcp_servers", "docker_image"})
        if left:
            notes.append(
                f"{'' if not name else name + '.'}{{{', '.join(left)}}} {'are' if len(left) > 1 else 'is'} not used"
            )
    return notes


def _other_workspace(environment: Path, table: Table) -> re.Pattern[str] | None:
    """Mentions of the folder that the task works in, by its settings or its Dockerfile, where it is not ours."""
    dockerfile = environment / "Dockerfile"
    found = WORKDIR.findall(small_text(dockerfile)) if dockerfile.is_file() else []
    said = table.get("workdir")
    if isinstance(said, str) and WORKDIR.fullmatch(f"WORKDIR {said}"):
        found.append(said.rstrip("/"))
    return mentions_of({found[-1]}) if found and found[-1] != OUR_WORKSPACE else None


def _placed(environment: Path, dockerfiles: Dockerfiles) -> tuple[dict[str, bytes | Path], list[str]]:
    """The files of the workspace, by environment/files or by a Dockerfile; a note of what is not done of it."""
    dockerfile = environment / "Dockerfile"
    text = small_text(dockerfile).replace("\\\n", " ") if dockerfile.is_file() else ""
    lines = [line.strip() for line in text.splitlines()]
    copies = {line: copied for line in lines if (copied := _sources(environment, line))}
    more = sorted({line.split(None, 1)[0] for line in lines if not HARMLESS.match(line) and line not in copies})
    if more and dockerfiles is not Dockerfiles.PLACE:
        return _kept(environment, dockerfiles)
    files: dict[str, bytes | Path] = {}
    if not any(source.removeprefix("./").startswith("files") for sources, _ in copies.values() for source in sources):
        files |= {f"environment/files/{p}": f for p, f in plain_files(environment / "files")}
    for sources, target in copies.values():
        for source in sources:
            files |= _copied(environment, source, target if len(sources) == 1 else f"{target.rstrip('/')}/")
    first = FROM_LINE.search(text)
    notes = [f"the image is ours, not {first[2]}"] if first else []
    if more:
        notes.append(
            f"its Dockerfile's {', '.join(more)} lines are not run; lint --run shows whether it matters, and an import "
            "with --dockerfiles rebase has them built"
        )
    return files, notes


def _sources(environment: Path, line: str) -> tuple[list[str], str] | None:
    """(sources, target) of a COPY or ADD line whose files lie beside the Dockerfile; None for any other line."""
    copied = COPIES.match(line)
    if copied is None or "--from" in copied["flags"]:
        return None
    words = copied["rest"].split()
    if copied["rest"].startswith("["):
        try:
            words = [str(word) for word in json.loads(copied["rest"])]
        except ValueError:
            return None
    if len(words) < 2 or any("<<" in word or "://" in word for word in words):
        return None
    *sources, target = words
    return [name for source in sources for name in _globbed(environment, source)], target


def _globbed(environment: Path, source: str) -> list[str]:
    """What a source with wildcards means, by name; any other as it is, whether it is there or not."""
    if not re.search(r"[*?\[]", source):
        return [source]
    return sorted(str(path.relative_to(environment)) for path in environment.glob(safe_path(source))) or [source]


def _kept(environment: Path, dockerfiles: Dockerfiles) -> tuple[dict[str, bytes | Path], list[str]]:
    """A Dockerfile with everything beside it, to be built with Corral's other images."""
    files: dict[str, bytes | Path] = {f"environment/{p}": f for p, f in plain_files(environment)}
    text = small_text(environment / "Dockerfile")
    stages = {match[1].lower() for match in STAGE.finditer(text)} | {"scratch"}
    images = sorted({match[2] for match in FROM_LINE.finditer(text) if match[2].lower() not in stages})
    what = f"starting from {', '.join(images)}, which must be here"
    if dockerfiles is Dockerfiles.REBASE:
        text = FROM_LINE.sub(lambda m: m[0] if m[2].lower() in stages else f"{m[1]}corral-base{m[3]}", text)
        files["environment/Dockerfile"] = text.encode()
        what = f"starting from corral-base instead of {', '.join(images)}"
    return files, [f"its Dockerfile is built by `corral images build HARNESS --pack …`, {what}"]


def _copied(environment: Path, source: str, target: str) -> dict[str, bytes | Path]:
    """What one COPY line places, seen from the workspace: the image's working folder is the workspace."""
    path = environment / safe_path(source.rstrip("/")) if source not in (".", "./") else environment
    if not path.resolve().is_relative_to(environment.resolve()):
        raise Refused(f"its Dockerfile copies {source}, which a link leads out of its folder")
    workdir = WORKDIR.findall(small_text(environment / "Dockerfile"))[-1:]
    places = "|".join([*map(re.escape, workdir), "/app", OUR_WORKSPACE, "/root", r"/home/\w+", r"\."])
    below = re.sub(rf"^(?:{places})(?:/|$)", "", target)
    if below.startswith("/"):
        raise Refused(f"its Dockerfile copies {source} to {target}, outside the workspace")
    if path.is_file():
        name = below if below and not target.endswith("/") else f"{below}{path.name}"
        return {f"environment/files/{safe_path(name)}": path}
    if not path.is_dir():
        raise Refused(f"its Dockerfile copies {source}, which is missing")
    own = ((p, f) for p, f in plain_files(path) if p != "Dockerfile")
    return {f"environment/files/{safe_path(f'{below}/{p}' if below else p)}": f for p, f in own}


def _yaml(file: Path) -> Table:
    try:
        document = yaml.safe_load(small_text(file))
    except yaml.YAMLError as error:
        raise Refused(f"{file.name} is not YAML: {' '.join(str(error).split())[:200]}") from error
    if not isinstance(document, dict):
        raise Refused(f"{file.name} is not a mapping")
    return document


def terminal_bench_task(folder: Path) -> Draft:
    """A terminal-bench 1 task folder."""
    document = _yaml(folder / "task.yaml")
    instruction = document.get("instruction")
    if not isinstance(instruction, str) or not instruction.strip():
        raise Refused("task.yaml has no instruction")
    services = folder / "docker-compose.yaml"
    started = _yaml(services).get("services") if services.is_file() else None
    if isinstance(started, dict) and len(started) > 1:
        raise Refused("docker-compose.yaml starts several services")
    files: dict[str, bytes | Path] = {f"tests/{p}": f for p, f in plain_files(folder / "tests")}
    runner = folder / "run-tests.sh"
    if not runner.is_file():
        raise Refused("run-tests.sh is missing")
    files["tests/run-tests.sh"] = runner
    files["tests/test.sh"] = TERMINAL_BENCH_TEST.encode()
    if (folder / "solution.sh").is_file():
        files["solution/solve.sh"] = folder / "solution.sh"
    skipped = {"task.yaml", "run-tests.sh", "solution.sh", "Dockerfile", "docker-compose.yaml", "solution.yaml"}
    notes = [
        "the reward is 1 when run-tests.sh ends with 0, else 0",
        "the image is ours, not the one of its Dockerfile",
    ]
    if re.search(r"\b(curl|wget|pip install|uv |apt-get)\b", small_text(runner)):
        notes.append(
            "run-tests.sh fetches packages, and there is no network: lint with --run shows whether it can grade"
        )
    for path, file in plain_files(folder):
        if path not in skipped and not path.startswith("tests/"):
            files[f"environment/files/{path}"] = file
    times = (seconds_in(document, "max_agent_timeout_sec"), seconds_in(document, "max_test_timeout_sec"))
    family = one_line(str(document.get("category") or "terminal-bench"))
    return Draft(task_name(folder.name), family, instruction.strip(), files, tuple(notes), times)


TERMINAL_BENCH_TEST = """\
#!/bin/bash
# terminal-bench grades by exit code; a missing test runner is no verdict, so nothing is written then.
cd "${CORRAL_WORKSPACE:-/workspace}" || exit 1
export TEST_DIR="${CORRAL_TESTS:-/tests}"
bash "$TEST_DIR/run-tests.sh"
code=$?
[ "$code" -ge 126 ] && exit "$code"
[ "$code" -eq 0 ] && reward=1 || reward=0
printf '%s\\n' "$reward" >"${CORRAL_VERIFIER_LOGS:-/logs/verifier}/reward.txt"
"""
