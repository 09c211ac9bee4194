"""Completion in a real bash: the function that `corral completion bash` prints is sourced and asked as TAB asks."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from appliance.cli import main
from appliance.config.runconfig import CHECKOUT
from appliance.record.store import Store

Ask = Callable[[str], set[str]]


@pytest.fixture
def tab(tmp_path: Path) -> Ask:
    """What bash offers when TAB is pressed at the end of a line."""
    program = tmp_path / "bin" / "corral"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m appliance.cli "$@"\n')
    program.chmod(0o755)

    def ask(line: str) -> set[str]:
        words = line.split(" ")
        script = f"""
            eval "$(corral completion bash)"
            COMP_LINE={shlex.quote(line)} COMP_POINT={len(line)} COMP_TYPE=9 COMP_KEY=9
            COMP_WORDS=({" ".join(map(shlex.quote, words))}) COMP_CWORD={len(words) - 1}
            function=$(complete -p corral | sed 's/.*-F \\([^ ]*\\).*/\\1/')
            "$function" corral {shlex.quote(words[-1])} {shlex.quote(words[-2])}
            printf '%s\\n' "${{COMPREPLY[@]}}"
        """
        environment = {"PATH": f"{program.parent}:/usr/bin:/bin", "CORRAL_HOME": str(tmp_path), "HOME": str(tmp_path)}
        environment["PYTHONPATH"] = str(CHECKOUT)
        told = subprocess.run(
            ["bash", "--norc", "-c", script], env=environment, capture_output=True, text=True, check=True, cwd=tmp_path
        )
        assert "Traceback" not in told.stderr
        return {answer.strip() for answer in told.stdout.splitlines()} - {""}

    return ask


@pytest.mark.slow
def test_commands_actions_and_options_are_offered(tab: Ask) -> None:
    assert tab("corral tra") == {"train", "transfer"}
    assert {"import", "list", "lint", "split"} <= tab("corral tasks ")
    assert {"--json", "--plain", "--set", "--detach"} <= tab("corral train --")


@pytest.mark.slow
def test_keys_harnesses_and_packs_are_offered_by_name(tab: Ask) -> None:
    assert tab("corral train run.toml --set train.group") == {"train.groups=", "train.group_size="}
    assert "codex" in tab("corral harness check cod") and "pi" not in tab("corral harness check cod")
    assert "pocket" in tab("corral tasks lint poc")


@pytest.mark.slow
def test_runs_of_the_record_are_offered_and_none_without_a_record(tab: Ask, tmp_path: Path) -> None:
    assert tab("corral replay ") == set()
    store = Store.open(tmp_path / "record.db")
    store.create_run("demo-1a2b", "demo", {}, 0, "test")
    store.close()
    assert tab("corral replay ") == {"demo-1a2b"}
    assert tab("corral export mer") == {"merged"}


@pytest.mark.parametrize(("shell", "mark"), [("zsh", "compdef"), ("fish", "complete --command corral")])
def test_the_other_shells_get_a_script_of_their_own(shell: str, mark: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["shell"] == shell and mark in found["script"]
