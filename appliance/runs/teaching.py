"""Which teacher answers a rollout of the cold start: the task's own commands, or a model the user names."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from appliance.capture.proxy import Answerer
from appliance.capture.upstream import Upstream, UpstreamTeacher
from appliance.config.sections import ColdstartSection
from appliance.errors import ConfigError, PackError
from appliance.harness.harness import Harness
from appliance.runs.teachers import ScriptedTeacher, SpokenTeacher, StepTeacher
from appliance.tasks.pack import Task

KEY_VARIABLE = "CORRAL_TEACHER_KEY"
SCRIPTED = "scripted"

Choose = Callable[[Task, Harness], Answerer]


@asynccontextmanager
async def teachers(settings: ColdstartSection) -> AsyncIterator[Choose]:
    """A function from (task, harness) to the teacher that answers. The key of a URL comes from CORRAL_TEACHER_KEY."""
    if settings.teacher == SCRIPTED:
        yield scripted
        return
    if not settings.teacher.startswith(("http://", "https://")):
        raise ConfigError(
            f"coldstart.teacher: {settings.teacher!r} is neither `scripted` nor a URL", "write https://…/v1"
        )
    upstream = Upstream(
        settings.teacher_wire, settings.teacher, settings.teacher_model, os.environ.get(KEY_VARIABLE, "")
    )
    async with UpstreamTeacher(upstream) as teacher:
        yield lambda task, harness: teacher


def scripted(task: Task, harness: Harness) -> Answerer:
    """The teacher that plays each step's solution/teacher.json through the harness's shell tool, or in its words."""
    teachers = [_of_commands(step.teacher, harness) for step in task.in_order if step.teacher]
    if len(teachers) < len(task.in_order):
        missing = next(step for step in task.in_order if not step.teacher)
        raise PackError(
            f"{missing.tests.parent}/solution/teacher.json: missing",
            "write its commands, or set coldstart.teacher to a URL",
        )
    return StepTeacher(teachers) if task.steps else teachers[0]


def _of_commands(commands: tuple[str, ...], harness: Harness) -> Answerer:
    if harness.command_text:
        return SpokenTeacher(commands, harness.command_text, harness.final_text)
    return ScriptedTeacher(commands, final_command=harness.final_command, helper=harness.helper)
