"""Does a harness keep its contract? One real rollout of it in a real sandbox against a scripted policy.

    starts offline · speaks its wire · runs tool calls · ends by itself · leaves nothing · one tree without a fork

The rollout is made by the same code as any other, in a record of its own that is gone afterwards.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import anyio
import numpy as np

from appliance.config import CHECKOUT, RunConfig, resolve
from appliance.errors import HarnessFileError, SandboxError, first_of
from appliance.harness import Harness
from appliance.images import base_ref, image_ref
from appliance.launch import IsBusy, Started
from appliance.memory import peak_bytes
from appliance.podmanconf import PodmanPlaces
from appliance.pool import Host, Pool
from appliance.proxy import Limits as ProxyLimits
from appliance.proxy import Proxy
from appliance.rollout import Place, make_rollout
from appliance.sandbox import Outcome, Podman, SandboxSpec
from appliance.scripted import ScriptedPolicy
from appliance.store import Store
from appliance.tasks import Task
from appliance.teaching import scripted
from appliance.tree import recover
from appliance.types import Call, Purpose, Rollout, RolloutPlan, RolloutState, TokenIds

TASK = CHECKOUT / "data" / "check" / "three-turns"
TIMEOUT_S = 240
MAX_CALLS = 40
RUN_ID = "check"


@dataclass(frozen=True, slots=True)
class Card:
    """What one check found. `problem` is empty when the whole contract holds.

    `offline`: it called its model and ended well without a network. `tool_call`: the commands it was told to run
    did their work. `unexplained_forks`: ends of the trees beyond one a root. `prefix_share`: of the prompt tokens
    after the first call, the share that an earlier call's prompt and answer already held. `peak_mb`: memory of its
    processes, page cache apart. `stray_ids`: calls whose recorded ids are not those that were sampled.
    """

    name: str
    version: str
    offline: bool
    wires: tuple[str, ...]
    tool_call: bool
    exit_code: int | None
    roots: int
    unexplained_forks: int
    prefix_share: float
    seconds: float
    peak_mb: float
    calls: int
    prompt_tokens: int
    stray_ids: int
    left_behind: tuple[str, ...]
    problem: str
    output: str

    def as_dict(self) -> dict[str, Any]:
        """The card as a JSON object."""
        return asdict(self)


class WatchedPodman(Podman):
    """A Podman that keeps how each sandbox ended and how much memory its processes held at most."""

    def __init__(self, home: Path) -> None:
        super().__init__(home)
        self.seen: list[tuple[SandboxSpec, Outcome, int]] = []

    async def watch(self, started: Started, is_busy: IsBusy = lambda: False) -> Outcome:
        """As `Podman.watch`, with an eye on its memory."""
        peaks: list[int] = [0]
        end: Outcome | SandboxError
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(peak_bytes, started.pid, peaks)
            try:
                end = await super().watch(started, is_busy)
            except SandboxError as error:
                end = error  # raised below: out of here it would come in an exception group
            tasks.cancel_scope.cancel()
        if isinstance(end, SandboxError):
            raise end
        self.seen.append((started.spec, end, peaks[0]))
        return end


@dataclass(slots=True)
class _Bench:
    """A record, a proxy and a Podman for checks, in a folder that is gone afterwards."""

    folder: Path
    owner: str
    config: RunConfig
    store: Store
    podman: WatchedPodman
    pool: Pool
    proxy: Proxy
    index: int = 0
    policies: list[ScriptedPolicy] = field(default_factory=list)

    async def make(self, harness: Harness) -> tuple[Rollout, list[Call]]:
        """One rollout of `harness`, and its calls."""
        task = Task.from_dir(TASK)
        (planned,) = self.store.plan([RolloutPlan(RUN_ID, Purpose.SINGLE, 0, harness.name, task.name, self.index)])
        self.index += 1
        place = Place(
            run_id=RUN_ID, config=self.config, store=self.store, pool=self.pool,
            proxy=self.proxy, harnesses={harness.name: harness}, images={harness.name: image_ref(harness)},
            grader_image=base_ref(),
        )  # fmt: skip
        self.policies.append(ScriptedPolicy(scripted(task, harness)))
        await make_rollout(place, planned, task, self.policies[-1], 0)
        (ended,) = [r for r in self.store.rollouts(RUN_ID) if r.id == planned.id]
        return ended, self.store.calls(planned.id)

    async def left_behind(self) -> tuple[str, ...]:
        """Sandboxes and folders that should be gone."""
        folders = [str(path) for path in (self.folder / "sandboxes").glob("*")]
        return (*await self.podman.list({"corral.owner": self.owner}), *folders)


@asynccontextmanager
async def bench(home: Path, timeout_s: int = TIMEOUT_S) -> AsyncIterator[_Bench]:
    """A place to check harnesses, with the images of the Podman whose state folder is `home`."""
    settings = {"rollout.timeout_s": str(timeout_s), "rollout.retries": "0", "rollout.max_tokens": "4096"}
    runs = PodmanPlaces.under(home).run
    runs.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="check-", dir=runs, ignore_cleanup_errors=True) as name:
        folder = Path(name)
        folder.chmod(0o711)
        store = Store.open(folder / "record.db")
        store.create_run(RUN_ID, RUN_ID, {}, 0, "")
        try:
            limits = ProxyLimits(max_calls=MAX_CALLS)
            owner = f"check{os.getpid()}"
            async with WatchedPodman(home) as podman, Proxy(store, folder / "proxy", limits) as proxy:
                proxy.directory.chmod(0o711)
                # None waits: each check makes one rollout.
                async with Pool([Host(podman)], folder / "sandboxes", {"corral.owner": owner}, at_most=0) as pool:
                    yield _Bench(folder, owner, resolve(None, settings), store, podman, pool, proxy)
        finally:
            store.close()


async def check(home: Path, harness: Harness, timeout_s: int = TIMEOUT_S) -> Card:
    """The card of one harness, whose image must be there."""
    async with bench(home, timeout_s) as place:
        if not await place.podman.image_exists(image_ref(harness)):
            raise HarnessFileError(f"the image of {harness.name} is missing", f"corral harness build {harness.name}")
        rollout, calls = await place.make(harness)
        runs = [(outcome, peak) for spec, outcome, peak in place.podman.seen if not spec.name.endswith("-grade")]
        left = await place.left_behind()
        return _card(harness, rollout, calls, runs, (place.policies[-1].said, left))


def checked(home: Path, harness: Harness, timeout_s: int = TIMEOUT_S) -> Card:
    """`check`, for a caller without an event loop; an error of ours comes out as itself."""
    try:
        return anyio.run(check, home, harness, timeout_s)
    except BaseExceptionGroup as group:
        found = first_of(group)
        if found is None:
            raise
        raise found from group


def _card(
    harness: Harness,
    rollout: Rollout,
    calls: Sequence[Call],
    runs: Sequence[tuple[Outcome, int]],
    rest: tuple[Sequence[TokenIds], tuple[str, ...]],
) -> Card:
    outcome, peak = runs[-1] if runs else (None, 0)
    samples = [call.sample for call in calls if call.sample is not None]
    tree = recover(samples)
    roots = sum(node.parent < 0 for node in tree.nodes)
    said, left = rest
    recorded = sorted(sample.sampled_ids.tobytes() for sample in samples)
    unlike = abs(len(said) - len(recorded)) + sum(
        a != b for a, b in zip(recorded, sorted(ids.tobytes() for ids in said), strict=False)
    )
    exit_code = outcome.exit_code if outcome else None
    card = Card(
        name=harness.name,
        version=harness.version,
        offline=bool(samples) and exit_code == 0,
        wires=tuple(sorted({call.wire for call in calls})),
        tool_call=rollout.reward == 1.0,
        exit_code=exit_code,
        roots=roots,
        unexplained_forks=len(tree.ends) - roots,
        prefix_share=round(prefix_share(calls), 4),
        seconds=round(outcome.seconds, 2) if outcome else 0.0,
        peak_mb=round(peak / 1e6, 1),
        calls=len(calls),
        prompt_tokens=len(samples[0].prompt_ids) if samples else 0,
        stray_ids=unlike,
        left_behind=left,
        problem="",
        output=outcome.output[-2000:] if outcome else "",
    )
    return _with_problem(card, harness, rollout)


def _with_problem(card: Card, harness: Harness, rollout: Rollout) -> Card:
    """The first thing that breaks the contract, in words."""
    claims = [
        (rollout.state is RolloutState.GRADED, f"{rollout.failure}: {rollout.failure_detail}"),
        (card.exit_code == 0, f"it ended with exit code {card.exit_code}"),
        (card.wires == (harness.wire,), f"it spoke {', '.join(card.wires) or 'nothing'}, not {harness.wire}"),
        (card.tool_call, "the commands it was told to run did not do their work"),
        (not card.stray_ids, f"{card.stray_ids} calls were recorded with other ids than were sampled"),
        (not card.left_behind, f"left behind: {', '.join(card.left_behind)}"),
        (card.roots == 1, f"its calls make {card.roots} trees"),
        (not card.unexplained_forks, f"its tree forks {card.unexplained_forks} times"),
    ]
    problem = next((said for holds, said in claims if not holds), "")
    return Card(**{**{name: getattr(card, name) for name in Card.__slots__}, "problem": problem})


def prefix_share(calls: Sequence[Call]) -> float:
    """Of the prompt tokens after the first call, the share that the longest matching earlier path already held."""
    shared = total = 0
    paths: list[TokenIds] = []
    for call in calls:
        if call.sample is None:
            continue
        prompt = call.sample.prompt_ids
        if paths:
            shared += max(_common(path, prompt) for path in paths)
            total += len(prompt)
        paths.append(np.concatenate([prompt, call.sample.sampled_ids]))
    return shared / total if total else 1.0


def _common(a: TokenIds, b: TokenIds) -> int:
    length = min(len(a), len(b))
    differing = np.flatnonzero(a[:length] != b[:length])
    return int(differing[0]) if len(differing) else length


def card_text(card: Card) -> str:
    """A card for a terminal."""
    lines = [
        f"{card.name} {card.version}: {'keeps the contract' if not card.problem else card.problem}",
        f"  starts and ends offline  {_tick(card.offline)}   exit code {card.exit_code}, {card.seconds:.1f} s",
        f"  wire                     {', '.join(card.wires) or '–'}",
        f"  tool calls work          {_tick(card.tool_call)}   {card.calls} calls",
        f"  leaves nothing           {_tick(not card.left_behind)}",
        f"  trees                    {card.roots} root, {card.unexplained_forks} unexplained forks, "
        f"{100 * card.prefix_share:.1f} % of later prompts shared",
        f"  ids as sampled           {_tick(not card.stray_ids)}",
        f"  first prompt             {card.prompt_tokens} bytes",
        f"  memory                   {card.peak_mb:.0f} MB at most",
    ]
    if card.problem and card.output:
        shown = json.dumps(card.output[-600:], ensure_ascii=False)  # untrusted text: control characters stay quoted
        lines.append(f"  its last output          {shown}")
    return "\n".join(lines)


def _tick(holds: bool) -> str:
    return "✓" if holds else "✗"
