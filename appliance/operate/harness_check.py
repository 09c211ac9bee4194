"""Does a harness keep its contract? One real rollout of it in a real sandbox against a scripted policy.

    starts offline · speaks its wire · runs tool calls · ends by itself · leaves nothing · one tree without a fork

The rollout is made by the same code as any other, in a record of its own that is gone afterwards.
"""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import anyio
import numpy as np

from appliance.capture.proxy import Answerer, Proxy
from appliance.capture.proxy import Limits as ProxyLimits
from appliance.config.runconfig import CHECKOUT, RunConfig, resolve
from appliance.config.sections import BranchesSection
from appliance.errors import ConfigError, HarnessFileError, SandboxError, first_of
from appliance.harness.harness import Harness
from appliance.operate.prompt_stability import Stability, stability
from appliance.record.conversation import said
from appliance.record.store import Store
from appliance.runs.rollout import Place, make_rollout
from appliance.runs.scripted_responder import ScriptedPolicy, byte_renderer
from appliance.runs.teaching import scripted
from appliance.sandbox.images.build import base_ref, image_ref
from appliance.sandbox.images.task import TaskImages
from appliance.sandbox.launch import IsBusy, Started
from appliance.sandbox.podman import Outcome, Podman
from appliance.sandbox.pool import Host, Pool
from appliance.sandbox.settings import PodmanPlaces
from appliance.system.memory import peak_bytes
from appliance.tasks.pack import Task
from appliance.trees.forks import Cause, forks
from appliance.trees.recovery import recovered
from appliance.types import Call, Message, Purpose, Rollout, RolloutPlan, RolloutState, Said, TokenIds

TASK = CHECKOUT / "data" / "check" / "three-turns"
TIMEOUT_S = 240
MAX_CALLS = 40
RUN_ID = "check"
# How the four wires count an answer's tokens; a stream's last number is the whole.
TOLD_TOKENS = re.compile(rb'"(?:completion_tokens|output_tokens|candidatesTokenCount)":\s*(\d+)')
NOT_FOUND = 127  # a shell's exit code for a program that is not there


@dataclass(frozen=True, slots=True)
class Card:
    """What one check found. `problem` is empty when the whole contract holds.

    `offline`: it called its model and ended well without a network. `tool_call`: the commands it was told to run
    did their work. `forks`: the cause of each; `unexplained_forks` those without one. `prefix_share`: of the prompt
    tokens after the first call, the share that an earlier call's prompt and answer already held. `peak_mb`: memory of
    its processes, page cache apart. `stray_ids`: calls whose recorded ids are not those that were sampled.
    `stability` compares several runs; None after a single one.
    """

    name: str
    version: str
    offline: bool
    wires: tuple[str, ...]
    tool_call: bool
    exit_code: int | None
    roots: int
    forks: tuple[str, ...]
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
    stability: Stability | None = None

    def as_dict(self) -> dict[str, Any]:
        """The card as a JSON object."""
        return asdict(self)


class WatchedPodman(Podman):
    """A Podman that keeps how each sandbox ended and how much memory its processes held at most."""

    def __init__(self, home: Path) -> None:
        super().__init__(home)
        self.seen: list[tuple[Outcome, int]] = []

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
        self.seen.append((end, peaks[0]))
        return end


@dataclass(frozen=True, slots=True)
class Trial:
    """One run of a harness: its calls as recorded, the ids as sampled, how its sandbox ended (None: it never began)."""

    rollout: Rollout
    calls: list[Said]
    sampled: list[TokenIds]
    outcome: Outcome | None
    peak_bytes: int


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

    async def make(
        self,
        harness: Harness,
        task: Task | None = None,
        own: TaskImages | None = None,
        teacher: Answerer | None = None,
    ) -> Trial:
        """One rollout of `harness` on the task of checks, or on another with its own images and teacher."""
        task = task or Task.from_dir(TASK)
        (planned,) = self.store.plan([RolloutPlan(RUN_ID, Purpose.SINGLE, 0, harness.name, task.name, self.index)])
        self.index += 1
        place = Place(
            run_id=RUN_ID, config=self.config, store=self.store, pool=self.pool,
            proxy=self.proxy, harnesses={harness.name: harness}, images={harness.name: image_ref(harness)},
            grader_image=base_ref(), own_images={task.name: own} if own else {},
        )  # fmt: skip
        policy = ScriptedPolicy(teacher or scripted(task, harness))
        self.podman.seen.clear()
        await make_rollout(place, planned, task, policy, 0)
        (ended,) = [r for r in self.store.rollouts(RUN_ID) if r.id == planned.id]
        calls = said(self.store.calls(planned.id), self.store.conversations(planned.id))
        outcome, peak = next(iter(self.podman.seen), (None, 0))  # the agent's comes before its grader's
        return Trial(ended, calls, policy.said, outcome, peak)

    async def left_behind(self) -> tuple[str, ...]:
        """Sandboxes and folders that should be gone."""
        folders = [str(path) for path in (self.folder / "sandboxes").glob("*")]
        return (*await self.podman.list({"corral.owner": self.owner}), *folders)


@asynccontextmanager
async def bench(home: Path, timeout_s: int = TIMEOUT_S) -> AsyncIterator[_Bench]:
    """A place to check harnesses, with the images of the Podman whose state folder is `home`."""
    settings = {"rollout.timeout_s": str(timeout_s), "rollout.retries": "0", "rollout.max_tokens": "4096"}
    runs = PodmanPlaces.under(home).make_run()
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


async def check(home: Path, harness: Harness, timeout_s: int = TIMEOUT_S, runs: int = 1) -> Card:
    """The card of one harness, whose image must be there: of the first run that breaks the contract, or the last."""
    async with bench(home, timeout_s) as place:
        if not await place.podman.image_exists(image_ref(harness)):
            raise HarnessFileError(f"the image of {harness.name} is missing", f"corral harness build {harness.name}")
        played: list[list[Said]] = []
        for _ in range(runs):
            trial = await place.make(harness)
            card = _card(harness, trial, await place.left_behind())
            played.append([_without_ids(call) for call in trial.calls])
            if card.problem:
                return card
        return replace(card, stability=stability(played) if runs > 1 else None)


def checked(home: Path, harness: Harness, timeout_s: int = TIMEOUT_S, runs: int = 1) -> Card:
    """`check`, for a caller without an event loop; an error of ours comes out as itself."""
    if runs < 1:
        raise ConfigError(f"--runs {runs}: nothing would be run", "give 1 or more")
    try:
        return anyio.run(check, home, harness, timeout_s, runs)
    except BaseExceptionGroup as group:
        found = first_of(group)
        if found is None:
            raise
        raise found from group


def _card(harness: Harness, trial: Trial, left_behind: tuple[str, ...]) -> Card:
    calls = [said.call for said in trial.calls]
    samples = [call.sample for call in calls if call.sample is not None]
    found = recovered(trial.calls, BranchesSection())
    causes = [fork.cause for fork in forks(trial.calls, found, byte_renderer().decode)]
    exit_code = trial.outcome.exit_code if trial.outcome else None
    card = Card(
        name=harness.name,
        version=harness.version,
        offline=bool(samples) and exit_code == 0,
        wires=tuple(sorted({call.wire for call in calls})),
        tool_call=trial.rollout.reward == 1.0,
        exit_code=exit_code,
        roots=sum(node.parent < 0 for node in found.tree.nodes),
        forks=tuple(str(cause) for cause in causes),
        unexplained_forks=causes.count(Cause.UNKNOWN),
        prefix_share=round(prefix_share(calls), 4),
        seconds=round(trial.outcome.seconds, 2) if trial.outcome else 0.0,
        peak_mb=round(trial.peak_bytes / 1e6, 1),
        calls=len(calls),
        prompt_tokens=len(samples[0].prompt_ids) if samples else 0,
        stray_ids=_num_unlike([sample.sampled_ids for sample in samples], trial.sampled)
        + sum(map(_is_told_wrong, calls)),
        left_behind=left_behind,
        problem="",
        output=trial.outcome.output[-2000:] if trial.outcome else "",
    )
    return replace(card, problem=_problem(card, harness, trial.rollout))


def _without_ids(call: Said) -> Said:
    """The call without the ids of tool calls, which the proxy makes anew for each rollout and no model sees."""

    def bare(message: Message) -> Message:
        return replace(message, tool_calls=tuple(replace(c, id="") for c in message.tool_calls), tool_call_id="")

    return replace(call, messages=tuple(map(bare, call.messages)), answer=bare(call.answer))


def _num_unlike(recorded: Sequence[TokenIds], sampled: Sequence[TokenIds]) -> int:
    """How many samples are recorded otherwise, or not at all, or not sampled though recorded."""
    counts = Counter(ids.tobytes() for ids in recorded)
    counts.subtract(ids.tobytes() for ids in sampled)
    return sum(abs(count) for count in counts.values())


def _is_told_wrong(call: Call) -> bool:
    """Whether the answer's usage block, where it has one, counts other than the sampled ids."""
    told = TOLD_TOKENS.findall(call.response_bytes)
    return bool(told) and call.sample is not None and int(told[-1]) != len(call.sample.sampled_ids)


def _problem(card: Card, harness: Harness, rollout: Rollout) -> str:
    """The first thing that breaks the contract, in words."""
    not_found = "a program of its launch line is not in its image (exit code 127): correct launch.argv or image.layer"
    claims = [
        (card.exit_code != NOT_FOUND, not_found),
        (rollout.state is RolloutState.GRADED, f"{rollout.failure}: {rollout.failure_detail}"),
        (card.exit_code == 0, f"it ended with exit code {card.exit_code}"),
        (card.wires == (harness.wire,), f"it spoke {', '.join(card.wires) or 'nothing'}, not {harness.wire}"),
        (card.tool_call, "the commands it was told to run did not do their work"),
        (not card.stray_ids, f"{card.stray_ids} calls were recorded with other ids than were sampled"),
        (not card.left_behind, f"left behind: {', '.join(card.left_behind)}"),
        (card.roots == 1, f"its calls make {card.roots} trees: {', '.join(card.forks)}"),
        (not card.unexplained_forks, f"its tree forks {card.unexplained_forks} times without a cause"),
    ]
    return next((said for holds, said in claims if not holds), "")


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
        f"  trees                    {card.roots} root, {len(card.forks)} forks ({', '.join(card.forks) or 'none'}), "
        f"{100 * card.prefix_share:.1f} % of later prompts shared",
        f"  ids as sampled           {_tick(not card.stray_ids)}",
        f"  first prompt             {card.prompt_tokens} bytes",
        f"  memory                   {card.peak_mb:.0f} MB at most",
    ]
    if card.stability is not None:
        lines += _stability_lines(card.stability)
    if card.problem and card.output:
        shown = json.dumps(card.output[-600:], ensure_ascii=False)  # untrusted text: control characters stay quoted
        lines.append(f"  its last output          {shown}")
    return "\n".join(lines)


def _stability_lines(found: Stability) -> list[str]:
    percent = {name: 100 * getattr(found, name) for name in ("same_prompts", "same_tools", "same_order")}
    lines = [
        f"  over {found.rollouts} runs              prompts alike {percent['same_prompts']:.0f} %, "
        f"tools {percent['same_tools']:.0f} %, order of calls {percent['same_order']:.0f} %",
        f"  shared by a common tree  {100 * found.shareable_tokens:.1f} % of all tokens, "
        f"{100 * found.shareable_between:.1f} % of what single trees store",
    ]
    return lines + [f"  differs                  {json.dumps(text)[:160]}" for text in found.first_differences[:4]]


def _tick(holds: bool) -> str:
    return "✓" if holds else "✗"
