"""`corral doctor`: what it finds on a broken machine, what it mends, and what a report leaves out."""

from __future__ import annotations

import json
import os
import resource
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from appliance.cli import main
from appliance.config.runconfig import CHECKOUT
from appliance.engine.child import EngineSettings, environment
from appliance.errors import ExportError, HostError
from appliance.operate import bug_report, host_checks, mending
from appliance.operate.doctor import checks, locked_versions, newest_model
from appliance.record.store import Store
from appliance.sandbox.settings import PodmanPlaces, proxy_directory
from appliance.system import offline, scratch
from appliance.system.redact import HIDDEN, redacted, redacted_value
from appliance.types import RunState

NAMES = {
    "python", "packages", "podman", "sandbox", "images", "harnesses", "home", "disk", "memory", "limits", "sockets",
    "clock", "offline", "device", "record", "pack", "model", "template", "leftovers",
}  # fmt: skip
HOUR = 3600.0


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A state folder of its own; the environment is put back, since `main` sets the offline switches."""
    monkeypatch.setenv("CORRAL_HOME", str(tmp_path))
    for name in offline.SWITCHES:
        monkeypatch.setenv(name, "?")
    return tmp_path


def check(home: Path, name: str) -> dict[str, object]:
    (found,) = checks(home, [name])
    return found


def a_model(home: Path, vocab_size: int) -> Path:
    folder = home / "runs" / "r" / "model" / "served"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({"vocab_size": vocab_size}))
    tokenizer = {"model": {"vocab": {"a": 0, "b": 1}}, "added_tokens": [{"id": 2, "content": "<end>"}]}
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    (folder / "model.safetensors").write_bytes(b"")
    return folder


# ------------------------------------------------------------------ checks


def test_every_check_has_a_name_a_finding_and_a_remedy_when_it_fails(
    own_home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["doctor", "--json"])
    found = json.loads(capsys.readouterr().out)["checks"]
    assert {row["name"] for row in found} == NAMES
    assert all(set(row) == {"name", "ok", "found", "remedy"} and row["found"] for row in found)
    assert all(row["remedy"] for row in found if not row["ok"])
    assert {row["name"]: row["ok"] for row in found}["offline"]


def test_a_record_that_others_can_read_is_named_and_mended(own_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CORRAL_PODMAN_HOME", str(own_home / "none"))
    Store.open(own_home / "record.db").close()
    assert host_checks.folder(own_home)[0]
    (own_home / "record.db").chmod(0o644)
    ok, found, remedy = host_checks.folder(own_home)
    assert not ok and "record.db" in found and remedy == "corral doctor --fix"
    assert f"closed {own_home}/record.db to other users" in mending.mend(own_home)
    assert stat.S_IMODE((own_home / "record.db").stat().st_mode) == 0o600


def test_runs_that_others_can_enter_are_named_and_mended_and_sandboxes_stay_reachable(
    own_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CORRAL_PODMAN_HOME", str(own_home / "none"))
    own_home.mkdir(exist_ok=True)
    own_home.chmod(0o711)
    for name in ("runs/r-1", "sandboxes/1-1"):
        (own_home / name).mkdir(parents=True)
    for path in own_home.rglob("*"):
        path.chmod(0o755)
    ok, found, remedy = host_checks.folder(own_home)
    assert not ok and found.endswith("runs, runs/r-1") and remedy == "corral doctor --fix"
    assert f"closed {own_home}/runs/r-1 to other users" in mending.mend(own_home)
    assert host_checks.folder(own_home)[0]
    modes = {name: stat.S_IMODE((own_home / name).stat().st_mode) for name in (".", "runs", "runs/r-1", "sandboxes")}
    assert modes == {".": 0o711, "runs": 0o700, "runs/r-1": 0o700, "sandboxes": 0o755}


def test_a_finding_names_five_open_folders_and_counts_the_rest(own_home: Path) -> None:
    for number in range(7):
        (own_home / "runs" / f"r-{number}").mkdir(parents=True)
        (own_home / "runs" / f"r-{number}").chmod(0o755)
    (own_home / "runs").chmod(0o755)
    assert host_checks.folder(own_home)[1].endswith("runs, runs/r-0, runs/r-1, runs/r-2, runs/r-3 and 3 more")


def test_the_folder_of_sockets_shows_nothing_to_others_whoever_makes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    places = PodmanPlaces(settings=tmp_path, storage=tmp_path, run=run)
    monkeypatch.setattr(PodmanPlaces, "under", lambda home: places)
    before = os.umask(0)
    try:
        proxy = proxy_directory(tmp_path)
    finally:
        os.umask(before)
    assert proxy == run / "proxy" and [stat.S_IMODE(p.stat().st_mode) for p in (run, proxy)] == [0o711, 0o711]


@pytest.mark.real
@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a file system as root")
def test_a_read_only_home_is_named_with_its_remedy(tmp_path: Path) -> None:
    home = tmp_path / "closed"
    home.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "ro,size=1m", "tmpfs", str(home)], check=True)
    try:
        ok, found, remedy = host_checks.folder(home / "corral")
        assert not ok and found.startswith(f"{home} is read-only") and "CORRAL_HOME" in remedy
        with pytest.raises(HostError, match="Read-only file system") as caught:
            mending.mend(home / "corral")
        assert "CORRAL_HOME" in caught.value.remedy
        done = subprocess.run(
            [sys.executable, "-m", "appliance.cli", "train", str(CHECKOUT / "data" / "demo.toml")],
            env=os.environ | {"CORRAL_HOME": str(home / "corral")}, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 1 and "CORRAL_HOME" in done.stderr and "Traceback" not in done.stderr
        assert list(home.iterdir()) == []
    finally:
        subprocess.run(["umount", str(home)], check=True)


def test_a_clock_behind_what_was_written_is_named(own_home: Path) -> None:
    now = time.time()
    assert host_checks.clock(newest_on_record=now - 5, now=now)[0]
    ok, found, remedy = host_checks.clock(newest_on_record=now + HOUR, now=now)
    assert not ok and "was written at" in found and "timedatectl" in remedy
    assert not host_checks.clock(now=1_000_000.0)[0]  # 1970: older than the code itself


def test_limits_are_compared_with_what_is_needed() -> None:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    assert host_checks.limits(4096, 4096)[0]
    ok, found, remedy = host_checks.limits(256, 4096)
    assert not ok and found == "256 open files, 4096 processes" and "nofile to 1024" in remedy
    assert host_checks.limits()[1].startswith(str(1 << 20 if hard == resource.RLIM_INFINITY else hard))


def test_gpus_without_a_working_driver_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert host_checks.device(tmp_path / "none")[1].startswith("no GPU")
    (tmp_path / "gpus" / "0000:01:00.0").mkdir(parents=True)
    monkeypatch.setenv("PATH", str(tmp_path))
    ok, found, remedy = host_checks.device(tmp_path / "gpus")
    assert not ok and found.startswith("1 GPUs, but nvidia-smi fails") and "nvidia-smi" in remedy


def test_a_tokenizer_with_more_ids_than_its_model_is_named(own_home: Path) -> None:
    folder = a_model(own_home, vocab_size=3)
    assert newest_model(own_home) == folder
    assert check(own_home, "model")["found"] == f"{folder}: 3 tokens of 3"
    (folder / "config.json").write_text(json.dumps({"vocab_size": 2}))
    assert check(own_home, "model")["found"] == f"{folder}: the tokenizer has id 2, the model only 2 tokens"
    (folder / "model.safetensors").unlink()
    assert "lacks weights" in str(check(own_home, "model")["found"])


def test_a_template_that_cannot_be_read_fails_with_its_own_words(own_home: Path) -> None:
    a_model(own_home, vocab_size=3)
    found = check(own_home, "template")
    assert not found["ok"] and found["found"]


def test_the_lock_names_the_engine_and_what_trains() -> None:
    locked = locked_versions()
    assert locked["bitsandbytes"][0].isdigit() and any(name.startswith("vllm") for name in locked)


# ------------------------------------------------------------------ offline switches


def test_I10_every_child_runs_with_every_offline_switch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")  # what a user's own shell may say
    own = environment(EngineSettings(model=tmp_path, log=tmp_path / "log"), tmp_path)
    assert offline.still_on(own) == []
    assert "HF_HUB_OFFLINE" in offline.still_on(os.environ)
    offline.switch_off()
    assert offline.still_on(os.environ) == []


# ------------------------------------------------------------------ leftovers


def test_scratch_of_the_living_and_of_the_young_stays(tmp_path: Path) -> None:
    alive, gone, young, foreign = (tmp_path / f"corral-engine-{n}" for n in "abcd")
    for folder in (alive, gone, young):
        folder.mkdir()
    (alive / "pid").write_text(str(os.getpid()))
    (gone / "pid").write_text("99999999")
    foreign.symlink_to(gone)
    later = time.time() + 2 * HOUR
    os.utime(young, (later, later))
    assert scratch.stale_scratch(tmp_path, now=later) == [gone]
    assert scratch.remove([gone]) == [str(gone)] and not gone.exists()


def test_a_log_that_grew_is_cut_to_its_last_lines(tmp_path: Path) -> None:
    log = tmp_path / "engine.log"
    lines = scratch.LOG_BYTES // 1000 + 50
    log.write_text("".join(f"{n:>6}{'x' * 993}\n" for n in range(lines)))
    assert scratch.cut_log(log)
    kept = log.read_text().splitlines()
    assert kept[0] == "(earlier lines were cut)" and kept[-1].startswith(f"{lines - 1:>6}") and len(kept[1]) == 999
    assert not scratch.cut_log(log) and not scratch.cut_log(tmp_path / "none")


def test_old_logs_go_by_the_rule_but_not_those_of_the_living_run(tmp_path: Path) -> None:
    for run in ("old", "alive", "new"):
        (tmp_path / run).mkdir()
        (tmp_path / run / "engine.log").write_text("x")
    long_ago = time.time() - 10 * scratch.DAY_S
    for run in ("old", "alive"):
        os.utime(tmp_path / run / "engine.log", (long_ago, long_ago))
    assert scratch.remove_logs(tmp_path, 0, "alive") == []
    assert scratch.remove_logs(tmp_path, 5, "alive") == [tmp_path / "old" / "engine.log"]
    assert (tmp_path / "alive" / "engine.log").exists() and (tmp_path / "new" / "engine.log").exists()


# ------------------------------------------------------------------ reports without secrets

SECRETS = (
    "GET http://127.0.0.1:8123/s/Zk3v9QbT7xLmN2pR8sWdYa1c/v1/responses",
    "Authorization: Bearer abcdefghij0123456789",
    "https://ann:hunter22@example.org/v1",
    "using sk-ant-REDACTED-abcdefghijklmnop",
    "CORRAL_TEACHER_KEY=verysecretvalue",
    '"api_key": "verysecretvalue"',
)


@pytest.mark.parametrize("line", SECRETS)
def test_secrets_are_taken_out(line: str) -> None:
    clean = redacted(line)
    assert HIDDEN in clean
    for secret in ("Zk3v9", "abcdefghij", "hunter22", "verysecret"):
        assert secret not in clean


def test_words_about_tokens_are_no_secrets() -> None:
    for line in ("max_tokens = 96", "sampled_tokens: 1200", "step 3/8  reward 0.5", "runs/demo-1129-225752-2fe4"):
        assert redacted(line) == line
    config = {"judge": {"key_env": "JUDGE_KEY", "url": "https://x/v1"}, "rollout": {"max_tokens": 96}}
    assert redacted_value("", config) == config
    assert redacted_value("", {"api_key": "x1y2"}) == {"api_key": HIDDEN}


def test_a_report_has_runs_events_and_logs_and_no_secret(own_home: Path) -> None:
    store = Store.open(own_home / "record.db")
    store.create_run("r", "r", {"judge": {"url": "https://ann:hunter22@example.org/v1"}}, 0, "")
    store.move_run("r", RunState.RUNNING)
    store.log("error", "engine", f"refused: {SECRETS[1]}", "r")
    store.close()
    (own_home / "runs" / "r").mkdir(parents=True)
    (own_home / "runs" / "r" / "engine.log").write_text("\n".join(SECRETS))
    target = bug_report.write(own_home, [{"name": "disk", "ok": True, "found": "1 GiB", "remedy": ""}], own_home / "b")
    text = target.read_text()
    (run,) = json.loads(text)["record"]["runs"]
    assert run["state"] == "running" and run["events"][-1]["part"] == "engine" and len(run["logs"]["engine.log"]) == 6
    assert not any(s in text for s in ("Zk3v9", "abcdefghij", "hunter22", "verysecret"))
    assert stat.S_IMODE(target.stat().st_mode) == 0o600
    with pytest.raises(ExportError, match="exists"):
        bug_report.write(own_home, [], target)
