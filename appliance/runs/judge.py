"""The judge of hybrid tasks: several votes of a model behind a URL, or of a local engine.

A vote that cannot be read is asked for again; when too few can be had, the rollout has no reward (GraderError), as with
any other failure of the infrastructure. No score is ever guessed. A judge is asked past the proxy: nothing that it
reads or says is a call of a rollout, so none of it is on the record or trained on; its scores are, as reward parts.

    UrlVoice       an OpenAI- or Anthropic-compatible endpoint
    EngineVoice    an engine: the run's own, which answers as the model without its adapter, or one of the judge's own
"""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Protocol

import anyio
from anyio import to_thread

from appliance.capture.rendering.families import renderer_of
from appliance.capture.rendering.renderer import Renderer
from appliance.capture.upstream import Upstream, UpstreamTeacher
from appliance.config.runconfig import RunConfig
from appliance.config.sections import JudgeSection
from appliance.engine.engine import BARE, Engine, EngineSettings
from appliance.engine.policy_responder import Engine as Sampling
from appliance.errors import CaptureError, ConfigError, EngineError, GraderError
from appliance.tasks.pack import Task
from appliance.tasks.rubric import (  # fmt: skip
    MAX_ALL_CHARS,
    MAX_FILE_CHARS,
    MAX_LISTED,
    Left,
    LeftFile,
    Verdict,
    prompt,
    read_vote,
    tally,
)
from appliance.types import Message, Request, Sample, TokenIds

RETRIES = 2
PAUSE_S = 1.0
MAX_READ_BYTES = 4 * MAX_FILE_CHARS  # UTF-8 has at most four bytes a character
LEAST_CHARS = 500
"""A judge whose context holds less than this of the files would judge without having seen the work."""
TEMPERATURE = 0.7
"""Of a local engine: votes must be able to differ, and a small model must still answer in the form asked for."""
MAX_RESTARTS = 3


class Voice(Protocol):
    """Whoever can be asked for a vote."""

    def fits(self, system: str, user: str) -> bool:
        """Whether the prompt can be asked at all."""
        ...

    async def say(self, system: str, user: str) -> str:
        """The answer; raises CaptureError or EngineError."""
        ...


class UrlVoice:
    """A model behind a URL. Async context manager: it owns the HTTP client."""

    def __init__(self, settings: JudgeSection) -> None:
        key = os.environ.get(settings.key_env, "") if settings.key_env else ""
        if settings.key_env and not key:
            raise ConfigError(
                f"judge.key_env: {settings.key_env} is not set", "export it, or leave judge.key_env empty"
            )
        bounds = settings.max_tokens, settings.timeout_s
        self._model = UpstreamTeacher(Upstream(settings.wire, settings.url, settings.model, key, *bounds))

    async def __aenter__(self) -> UrlVoice:
        await self._model.__aenter__()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._model.__aexit__(*error)

    def fits(self, system: str, user: str) -> bool:
        """Its context is not ours to know."""
        return True

    async def say(self, system: str, user: str) -> str:
        """The model's answer."""
        request = Request("judge", "", (Message("system", system), Message("user", user)))
        answer, _ = await self._model.answer(None, request, None)
        return answer.message.content


class EngineVoice:
    """A local engine without an adapter: a judge that stands still while the policy learns."""

    def __init__(self, engine: Sampling, renderer: Renderer, context_length: int, settings: JudgeSection) -> None:
        self._engine, self._renderer = engine, renderer
        self._max_tokens = max(1, min(settings.max_tokens, context_length // 4))
        self._room = context_length - self._max_tokens
        self._timeout_s = settings.timeout_s

    def fits(self, system: str, user: str) -> bool:
        """Whether prompt and answer go into the context."""
        return len(self._ids(system, user)) <= self._room

    async def say(self, system: str, user: str) -> str:
        """What the model says, without its reasoning."""
        with anyio.move_on_after(self._timeout_s):
            sample = await self._engine.sample(
                self._ids(system, user), self._max_tokens, TEMPERATURE, self._renderer.stop_ids, policy_version=BARE
            )
            return self._renderer.parse(sample.sampled_ids, ()).content
        raise EngineError("late", f"no vote within {self._timeout_s:g} s (judge.timeout_s)")

    def _ids(self, system: str, user: str) -> TokenIds:
        return self._renderer.render((Message("system", system), Message("user", user)), ())


class OwnEngine:
    """An engine that is there for the judge alone; started again when it failed, a few times."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._restarts = MAX_RESTARTS
        self._mending = anyio.Lock()

    async def sample(
        self,
        prompt_ids: TokenIds,
        max_tokens: int,
        temperature: float = 1.0,
        stop_ids: tuple[int, ...] = (),
        seed: int | None = None,
        policy_version: int | None = None,
    ) -> Sample:
        """As `Engine.sample`."""
        async with self._mending:
            if self._engine.failure is not None and self._restarts:
                self._restarts -= 1
                await self._engine.restart()
        return await self._engine.sample(prompt_ids, max_tokens, temperature, stop_ids, seed, policy_version)


class Judge:
    """`await Judge(config.judge, voice).score(task, workspace)`."""

    def __init__(self, settings: JudgeSection, voice: Voice) -> None:
        self._votes = settings.votes
        self._voice = voice
        self._turns = anyio.Semaphore(settings.parallel)
        self._calls_left: int | None = settings.max_calls or None

    async def score(self, task: Task, workspace: Path) -> Verdict:
        """The verdict on a final workspace; GraderError `no_judge` when the judge could not be heard often enough."""
        assert task.rubric is not None
        left = await to_thread.run_sync(left_files, workspace)
        votes: list[tuple[float, ...]] = []
        said: list[str] = []

        async def vote() -> None:
            try:
                votes.append(await self._vote(task, left))
            except GraderError as error:
                said.append(error.message)

        async with anyio.create_task_group() as group:
            for _ in range(self._votes):
                group.start_soon(vote)
        if len(votes) * 2 <= self._votes:
            raise GraderError("no_judge", f"{len(votes)} of {self._votes} votes could be had: {'; '.join(said[:2])}")
        return tally(task.rubric, votes)

    async def _vote(self, task: Task, left: Left) -> tuple[float, ...]:
        assert task.rubric is not None
        problem = ""
        for attempt in range(RETRIES + 1):
            system, user = self._prompt(task, left)
            try:
                async with self._turns:
                    self._spend()
                    said = await self._voice.say(system, user)
                return read_vote(said, len(task.rubric.criteria))
            except (CaptureError, EngineError, ValueError) as error:
                problem = str(error)
            await anyio.sleep(PAUSE_S * 2**attempt)
        raise GraderError("no_judge", problem)

    def _prompt(self, task: Task, left: Left) -> tuple[str, str]:
        """The prompt of one vote, with as much of the files as the judge's context holds."""
        assert task.rubric is not None
        max_chars = MAX_ALL_CHARS
        while max_chars >= LEAST_CHARS:
            asked = prompt(task.instruction, task.rubric, left, f"data-{secrets.token_hex(8)}", max_chars)
            if self._voice.fits(*asked):
                return asked
            max_chars = max_chars * 2 // 3
        raise GraderError(
            "no_judge", f"{task.name}: instruction and rubric fill the judge's context; raise its max_model_len"
        )

    def _spend(self) -> None:
        if self._calls_left == 0:
            raise GraderError("no_judge", "the calls of this start of the run are used up (judge.max_calls)")
        if self._calls_left is not None:
            self._calls_left -= 1


@asynccontextmanager
async def judging(config: RunConfig, log: Path) -> AsyncIterator[Judge | None]:
    """The judge that needs no policy: a URL, or an engine of its own; None where the run names neither."""
    settings = config.judge
    if settings.url:
        async with UrlVoice(settings) as voice:
            yield Judge(settings, voice)
    elif settings.engine not in ("", "run"):
        folder = Path(settings.engine)
        renderer = renderer_of(folder)
        async with Engine(engine_settings(config, folder, log)) as engine:
            yield Judge(settings, EngineVoice(OwnEngine(engine), renderer, settings.max_model_len, settings))
    else:
        yield None


def engine_settings(config: RunConfig, folder: Path, log: Path) -> EngineSettings:
    """What the judge's own engine is started with: the run's device and threads, a context of its own."""
    engine = config.engine
    return EngineSettings(
        model=folder,
        log=log,
        max_model_len=config.judge.max_model_len,
        max_num_seqs=config.judge.parallel,
        kv_cache_gib=engine.kv_cache_gib,
        threads=engine.threads,
        startup_deadline_s=engine.startup_deadline_s,
        call_deadline_s=engine.call_deadline_s,
        device=engine.resolved_device,
        dtype="float32" if engine.resolved_device == "cpu" else "bfloat16",
        seed=config.seed,
    )


def left_files(workspace: Path) -> Left:
    """The regular files of a frozen workspace as far as a judge is shown them; only those are read."""
    found: dict[str, LeftFile] = {}
    num_more, room = 0, MAX_ALL_CHARS
    for path in _walked(workspace):
        if len(found) == MAX_LISTED or room <= 0:
            num_more += 1
            continue
        file = _file_of(path)
        if file is not None:
            # A name that is no UTF-8 must not keep its file from being judged.
            name = os.fsencode(path.relative_to(workspace)).decode("utf-8", "replace")
            found[name] = file
            room -= min(len(file.text), MAX_FILE_CHARS)
    return Left(found, num_more)


def _walked(workspace: Path) -> Iterator[Path]:
    for top, folders, names in os.walk(workspace):
        folders.sort()
        for name in sorted(names):
            yield Path(top, name)


def _file_of(path: Path) -> LeftFile | None:
    """What a regular file says, None for any other; what an agent made unreadable must not end the run."""
    try:
        state = path.lstat()
        if not stat.S_ISREG(state.st_mode):
            return None
        with path.open("rb") as file:
            data = file.read(MAX_READ_BYTES)
    except OSError as error:
        return LeftFile(f"[cannot be read: {error.strerror}]", 0)
    if b"\0" in data:
        return LeftFile("[not text]", state.st_size)
    return LeftFile(data.decode("utf-8", "replace"), state.st_size, len(data) == state.st_size)
