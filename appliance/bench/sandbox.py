"""`corral bench sandbox`: what a sandbox costs, beside bare Podman in the same run; how many live; what stays.

Every comparison is made by turns within one run, so that a busy machine slows both sides. Needs only the base image.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from appliance.runs.rollout import Place
    from appliance.sandbox.podman import Podman
    from appliance.sandbox.pool import Kind, Pool

TEXT = "sandboxes: cold, warm and bare starts, how many live at once, many rollouts, what is left behind"
REMOVAL_S = 3.0
OURS = ("sandbox", "engine", "capture", "corral")


def add(parser: argparse.ArgumentParser) -> None:
    """Its options."""
    parser.add_argument("--repeats", type=int, default=20, help="starts of each sort")
    parser.add_argument("--alive", type=int, default=200, help="sandboxes alive at once")
    parser.add_argument("--rollouts", type=int, default=1000, help="rollouts of the scripted harness")
    parser.add_argument("--parallel", type=int, default=8, help="rollouts at once")
    parser.add_argument("--svg", type=Path, default=None, help="where to draw memory and open files over the rollouts")


def measure(arguments: argparse.Namespace) -> tuple[dict[str, Any], str]:
    """The promised object, and a table that says the same."""
    import anyio

    from appliance.errors import first_of

    try:
        found = anyio.run(_measure, arguments)
    except BaseExceptionGroup as group:
        ours = first_of(group)
        if ours is None:
            raise
        raise ours from group
    curves = found.pop("_curves")
    if arguments.svg is not None:
        from appliance.report.charts import curve_svg

        tops = f"top: {found['rss_mb']:.0f} MB and {found['open_files']} open files"
        arguments.svg.write_text(curve_svg(curves, f"supervisor over {found['rollouts']} rollouts; {tops}"))
    return found, "\n".join(f"{key:<22} {value}" for key, value in found.items())


async def _measure(arguments: argparse.Namespace) -> dict[str, Any]:
    from appliance.bench.scripted_run import place_for
    from appliance.config.runconfig import podman_home
    from appliance.runs.rollout import kind_of
    from appliance.sandbox.settings import owner_of

    started_with = os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="corral-bench-") as name:
        folder = Path(name).resolve()
        os.environ.setdefault("CORRAL_PODMAN_HOME", str(podman_home(_home())))
        async with place_for(folder, arguments.parallel) as place:
            podman, kind = place.pool.hosts[0].podman, kind_of(place, place.harnesses["scripted"])
            found = await _starts(podman, place.pool, kind, arguments.repeats)
            found["alive_at_once"] = await _alive(place.pool, kind, arguments.alive)
            found |= await _rollouts(place, arguments)
        found["left_behind"] = await _left(folder, owner_of(folder))
    found["load_at_start"] = round(started_with, 1)
    return found


async def _starts(podman: Podman, pool: Pool, kind: Kind, repeats: int) -> dict[str, Any]:
    """Whole lifecycles, ours and bare by turns, in wall time and CPU of service, monitors and sandboxes together."""
    from appliance.sandbox.images.build import base_ref
    from appliance.sandbox.podman import SandboxSpec

    number = 0

    async def ours() -> None:
        nonlocal number
        number += 1
        spec = SandboxSpec(f"corral-bench-{os.getpid()}-{number}", base_ref(), ("true",), labels=pool.labels)
        await podman.run(spec)

    async def bare() -> None:
        await _bare(podman, base_ref())

    walls: dict[str, list[float]] = {"ours": [], "bare": []}
    cpus: dict[str, list[float]] = {"ours": [], "bare": []}
    for _ in range(repeats):
        for name, act in (("ours", ours), ("bare", bare)):
            wall, cpu = await _timed(podman, act)
            walls[name].append(wall)
            cpus[name].append(cpu)
    warm = await _warm(pool, kind, repeats)
    began = time.monotonic()
    await _at_once(ours, 4 * repeats, 8)
    cold_ms, bare_ms = median(walls["ours"]) * 1e3, median(walls["bare"]) * 1e3
    return {
        "cold_ms_p50": round(cold_ms, 1),
        "warm_ms_p50": round(median(warm) * 1e3, 1),
        "bare_podman_ms_p50": round(bare_ms, 1),
        "ratio_to_bare": round(cold_ms / bare_ms, 3),
        "service_cpu_ratio": round(sum(cpus["ours"]) / sum(cpus["bare"]), 3),
        "per_s": round(4 * repeats / (time.monotonic() - began), 2),
    }


async def _bare(podman: Podman, image: str) -> None:
    """What Podman alone takes for one container: no network, and nothing of ours."""
    name = f"corral-bare-{os.urandom(6).hex()}"
    request = {"name": name, "image": image, "command": ["true"], "netns": {"nsmode": "none"}}
    await podman.request("POST", "/containers/create", body=request)
    try:
        await podman.request("POST", f"/containers/{name}/start")
        await podman.request("POST", f"/containers/{name}/wait", {"condition": "exited", "interval": "20ms"})
    finally:
        await podman.remove(name)


async def _timed(podman: Podman, act: Callable[[], Awaitable[None]]) -> tuple[float, float]:
    """Seconds of wall time, and of CPU that the Podman service used meanwhile."""
    wall, cpu = time.monotonic(), _cpu_s(podman.service_pid)
    await act()
    return time.monotonic() - wall, _cpu_s(podman.service_pid) - cpu


async def _warm(pool: Pool, kind: Kind, repeats: int) -> list[float]:
    """Seconds from wanting a sandbox to its command's first act, which is to print the time."""
    seconds = []
    for _ in range(repeats):
        await pool.fill(kind, 1)
        wanted = time.time()
        async with pool.slot(kind, "bench") as slot:
            started = await slot.go(("date", "+%s.%N"), {}, kind.limits)
            outcome = await slot.watch(started, lambda: False)
            assert slot.is_warm
        seconds.append(float(outcome.output) - wanted)
    return seconds


async def _alive(pool: Pool, kind: Kind, number: int) -> int:
    """How many wait at once when so many are asked for."""
    await _at_once(lambda: pool.fill(kind, pool.num_waiting(kind) + 1), number - pool.num_waiting(kind), 8)
    alive = len(await pool.hosts[0].podman.list(pool.labels))
    await pool.empty()
    return alive


async def _rollouts(place: Place, arguments: argparse.Namespace) -> dict[str, Any]:
    """Many rollouts; growth is counted from the first tenth on, when every thread and buffer is there."""
    from appliance.bench.scripted_run import small_run

    marks: list[tuple[int, float, int]] = []
    every = max(1, arguments.rollouts // 50)

    def note(done: int) -> None:
        if done % every == 0:
            marks.append((done, _rss_mb(), len(os.listdir("/proc/self/fd"))))

    began = time.monotonic()
    ended = await small_run(place, arguments.rollouts, arguments.parallel, note)
    note(every)
    settled = [mark for mark in marks if mark[0] >= arguments.rollouts // 10] or marks
    tops = max(mark[1] for mark in marks), max(mark[2] for mark in marks)
    return {
        "rollouts": len(ended),
        "rollouts_per_s": round(len(ended) / (time.monotonic() - began), 2),
        "failures_ours": sum(r.failure.partition(":")[0] in OURS for r in ended),
        "failures_other": sum(bool(r.failure) and r.failure.partition(":")[0] not in OURS for r in ended),
        "retried": sum(r.attempt > 1 for r in ended),
        "rss_growth_mb": round(settled[-2 if len(settled) > 1 else -1][1] - settled[0][1], 1),
        "open_files_growth": settled[-2 if len(settled) > 1 else -1][2] - settled[0][2],
        "rss_off_median_percent": _off_median([mark[1] for mark in settled]),
        "rss_drift_percent": _drift([mark[1] for mark in settled]),
        "open_files_drift_percent": _drift([float(mark[2]) for mark in settled]),
        "rss_mb": round(tops[0], 1),
        "open_files": tops[1],
        "_curves": {
            "memory": [(done, mb / tops[0]) for done, mb, _ in marks[:-1]],
            "open files": [(done, files / tops[1]) for done, _, files in marks[:-1]],
        },
    }


def _off_median(values: list[float]) -> float:
    """How far the value furthest from the median lies from it, in percent: below 5 is flat."""
    middle = median(values)
    return round(100 * max(abs(value - middle) for value in values) / middle, 2)


def _drift(values: list[float]) -> float:
    """Mean of the last third against the first, in percent: open files go up and down with what is under way."""
    third = max(1, len(values) // 3)
    first, last = sum(values[:third]) / third, sum(values[-third:]) / third
    return round(100 * (last - first) / first, 2)


async def _left(folder: Path, owner: str) -> int:
    """Sandboxes, folders and cgroups that should be gone; asked of a Podman of its own."""
    import anyio

    from appliance.config.runconfig import podman_home
    from appliance.sandbox.podman import Podman
    from appliance.sandbox.service import runtime_containers
    from appliance.sandbox.settings import PodmanPlaces
    from appliance.system.cgroup import ROOT, ids_under

    async with Podman(podman_home(folder)) as podman:
        containers = set(await podman.list({"corral.owner": owner}))
        # What Podman itself forgot tells by its mounts whose it was: others may share this storage.
        storage = PodmanPlaces.under(podman_home(folder)).storage
        configs = storage.glob("*-containers/*/userdata/config.json")
        ours = {path.parents[1].name for path in configs if _names(path, folder)}
        left = containers | {container.id for container in runtime_containers(storage) if container.id in ours}
        with_cgroups = ids_under(ROOT, PodmanPlaces.under(podman_home(folder)).cgroup)
        known = {entry["Id"] for entry in await podman.request("GET", "/containers/json", {"all": "true"})}
        await anyio.sleep(REMOVAL_S)  # one that another record over this storage was removing is gone then
        left |= (with_cgroups - known) & ids_under(ROOT, PodmanPlaces.under(podman_home(folder)).cgroup)
        await podman.reconcile({"corral.owner": owner})
    return len(left) + len(list((folder / "sandboxes").glob("*")))


def _names(config: Path, folder: Path) -> bool:
    try:
        return str(folder) in config.read_text()
    except OSError:  # it was being removed
        return False


async def _at_once(act: Callable[[], Awaitable[None]], times: int, width: int) -> None:
    import anyio

    left = iter(range(max(0, times)))

    async def worker() -> None:
        for _ in left:
            await act()

    async with anyio.create_task_group() as tasks:
        for _ in range(width):
            tasks.start_soon(worker)


def _home() -> Path:
    from appliance.config.runconfig import home

    return home()


def _cpu_s(pid: int) -> float:
    """User and system seconds of a process and of its children that have ended."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


def _rss_mb() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6
