"""The judge of hybrid tasks: several votes of a model behind an OpenAI- or Anthropic-compatible URL.

A vote that cannot be read is asked for again; when too few can be had, the rollout has no reward (GraderError), as with
any other failure of the infrastructure. No score is ever guessed.
"""

from __future__ import annotations

import os
import secrets
import stat
from pathlib import Path
from typing import Self

import anyio
from anyio import to_thread

from appliance.errors import CaptureError, ConfigError, GraderError
from appliance.rubric import Rubric, Verdict, prompt, read_vote, tally
from appliance.sections import JudgeSection
from appliance.tasks import Task
from appliance.teacher import Upstream, UpstreamTeacher
from appliance.types import Message, Request

RETRIES = 2
PAUSE_S = 1.0
MAX_READ_BYTES = 64 * 1024


class Judge:
    """`async with Judge(config.judge) as judge`, then `await judge.score(task, workspace)`."""

    def __init__(self, settings: JudgeSection) -> None:
        key = os.environ.get(settings.key_env, "") if settings.key_env else ""
        if settings.key_env and not key:
            raise ConfigError(
                f"judge.key_env: {settings.key_env} is not set", "export it, or leave judge.key_env empty"
            )
        self._votes = settings.votes
        self._model = UpstreamTeacher(
            Upstream(settings.wire, settings.url, settings.model, key, timeout_s=settings.timeout_s)
        )

    async def __aenter__(self) -> Self:
        await self._model.__aenter__()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._model.__aexit__(*error)

    async def score(self, task: Task, workspace: Path) -> Verdict:
        """The verdict on a final workspace; GraderError `no_judge` when the judge could not be heard often enough."""
        assert task.rubric is not None
        files = await to_thread.run_sync(left_files, workspace)
        votes: list[tuple[float, ...]] = []
        said: list[str] = []

        async def vote() -> None:
            try:
                votes.append(await self._vote(task, task.rubric, files))  # type: ignore[arg-type]
            except GraderError as error:
                said.append(error.message)

        async with anyio.create_task_group() as group:
            for _ in range(self._votes):
                group.start_soon(vote)
        if len(votes) * 2 <= self._votes:
            raise GraderError("no_judge", f"{len(votes)} of {self._votes} votes could be had: {'; '.join(said[:2])}")
        return tally(task.rubric, votes)

    async def _vote(self, task: Task, rubric: Rubric, files: dict[str, str]) -> tuple[float, ...]:
        problem = ""
        for attempt in range(RETRIES + 1):
            system, user = prompt(task.instruction, rubric, files, f"data-{secrets.token_hex(8)}")
            request = Request("judge", "", (Message("system", system), Message("user", user)))
            try:
                answer, _ = await self._model.answer(None, request, None)
                return read_vote(answer.message.content, len(rubric.criteria))
            except (CaptureError, ValueError) as error:
                problem = str(error)
            await anyio.sleep(PAUSE_S * 2**attempt)
        raise GraderError("no_judge", problem)


def left_files(workspace: Path) -> dict[str, str]:
    """Path → text of the regular files of a frozen workspace, small ones whole; other content is only named."""
    found: dict[str, str] = {}
    for top, folders, names in os.walk(workspace):
        folders.sort()
        for name in sorted(names):
            path = Path(top, name)
            text = _text_of(path)
            if text is not None:
                found[path.relative_to(workspace).as_posix()] = text
    return found


def _text_of(path: Path) -> str | None:
    """What a regular file says, None for any other; what an agent made unreadable must not end the run."""
    try:
        state = path.lstat()
        if not stat.S_ISREG(state.st_mode):
            return None
        with path.open("rb") as file:
            data = file.read(MAX_READ_BYTES)
    except OSError as error:
        return f"[cannot be read: {error.strerror}]"
    return data.decode("utf-8", "replace") if b"\0" not in data else f"[{state.st_size} bytes, not text]"
