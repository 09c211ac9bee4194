"""The systemd unit: what it says, and that a machine without systemd is told so."""

from __future__ import annotations

import configparser
import json
import shutil
import socket
import subprocess
from pathlib import Path

import anyio
import pytest

from appliance.cli import main
from appliance.errors import HostError
from appliance.operate import service
from appliance.runs.watchdog import tell_alive


def section(text: str, name: str) -> dict[str, str]:
    parser = configparser.RawConfigParser(strict=False)
    parser.optionxform = str  # type: ignore[assignment]
    parser.read_string(text)
    return dict(parser[name])


def test_the_unit_goes_on_with_the_newest_run_and_drains_when_stopped() -> None:
    said = section(service.unit(Path("/opt/corral/.venv/bin/corral"), {}), "Service")
    assert said["ExecStart"] == '"/opt/corral/.venv/bin/corral" resume --plain'
    assert (said["Type"], said["KillMode"], said["Restart"]) == ("notify", "mixed", "on-abnormal")
    assert said["SuccessExitStatus"] == "3" and int(said["WatchdogSec"]) == service.WATCHDOG_S


def test_odd_characters_are_quoted_as_systemd_reads_them() -> None:
    text = service.unit(Path('/a b/100%/"x"/corral'), {"CORRAL_HOME": "/data/$me"})
    assert '"/a b/100%%/\\"x\\"/corral" resume' in text and 'Environment="CORRAL_HOME=/data/$$me"' in text
    with pytest.raises(HostError, match="line break"):
        service.unit(Path("/a\nb"), {})


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd's own checker is not installed")
def test_systemds_own_checker_takes_the_unit(tmp_path: Path) -> None:
    path = tmp_path / service.NAME
    path.write_text(service.unit(Path("/bin/true"), {"CORRAL_HOME": "/data/a b"}))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--user", str(path)], capture_output=True, text=True, check=False
    )
    assert str(path) not in done.stderr, done.stderr  # what it says of other units is not ours


def test_a_machine_without_systemd_is_told_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    for act in (lambda: service.install(Path("/bin/true"), tmp_path / "none"), lambda: service.remove(tmp_path / "no")):
        with pytest.raises(HostError, match="does not run systemd") as caught:
            act()
        assert "corral resume --plain" in caught.value.remedy
    assert list(tmp_path.iterdir()) == []


def test_show_prints_it_anywhere(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["service", "show", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert "WantedBy=default.target" in found["unit"] and found["file"].endswith("systemd/user/corral.service")


def test_systemd_is_told_that_we_are_ready_and_that_we_live(tmp_path: Path) -> None:
    async def listen(heard: socket.socket, address: str) -> list[bytes]:
        async with anyio.create_task_group() as group:
            group.start_soon(tell_alive, {"NOTIFY_SOCKET": address, "WATCHDOG_USEC": "30000"})
            told = [await anyio.to_thread.run_sync(heard.recv, 100) for _ in range(3)]
            group.cancel_scope.cancel()
        return told

    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as heard:
        heard.bind(str(tmp_path / "notify"))
        heard.settimeout(60)
        told = anyio.run(listen, heard, str(tmp_path / "notify"))
    assert told == [b"READY=1", b"WATCHDOG=1", b"WATCHDOG=1"]
    anyio.run(tell_alive, {})  # without systemd it returns at once
