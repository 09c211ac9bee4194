"""Which harnesses a run uses, and whether each can take every task: said before anything starts, not in its middle."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from appliance.config.runconfig import RunConfig
from appliance.errors import ApplianceError, ConfigError
from appliance.harness.catalog import Shelf
from appliance.harness.harness import Harness
from appliance.tasks.pack import Task


def chosen_harnesses(config: RunConfig, home: Path) -> dict[str, Harness]:
    """The harness files that the run names, of those at hand in this home."""
    shelf = Shelf.of(home)
    for name in config.harnesses:
        if name not in shelf.harnesses and not any(path.stem == name for path in shelf.problems):
            raise ApplianceError(f"harnesses: there is no harness {name!r}", f"known: {', '.join(shelf.harnesses)}")
    return {name: shelf.get(name) for name in config.harnesses}


def check_fit(tasks: Iterable[Task], harnesses: Iterable[Harness]) -> None:
    """ConfigError names the first task with an MCP server that one of the harnesses cannot be told of."""
    at_hand = tuple(harnesses)
    for task in tasks:
        for harness in at_hand:
            if why := harness.why_not(task.mcp_servers):
                names = ", ".join(server.name for server in task.mcp_servers)
                able = ", ".join(other.name for other in at_hand if not other.why_not(task.mcp_servers))
                raise ConfigError(
                    f"task {task.name} needs the MCP server {names}, and harness {harness.name} cannot be told of it: "
                    f"{why}",
                    f"leave out {harness.name}{able and f' ({able} can)'}, or the task, by tasks.families; "
                    "`corral harness list` marks the harnesses that can",
                )
