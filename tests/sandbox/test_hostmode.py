"""What this host can do for a sandbox, told in words, and a bad host's error with its remedy."""

from __future__ import annotations

import io
import json
import os
import subprocess
import tarfile
from dataclasses import replace
from pathlib import Path

import anyio
import pytest

from appliance.config.runconfig import home, podman_home
from appliance.errors import HostError, SandboxError
from appliance.sandbox.launch import not_started
from appliance.sandbox.podman import Limits, Podman
from appliance.sandbox.pool import Host, Kind, Pool
from appliance.sandbox.seccomp import STOCK_PROFILES, profile
from appliance.sandbox.settings import (
    HostTraits,
    PodmanPlaces,
    has_subids,
    is_too_old,
    podman_environment,
    remedy_of,
    sandbox_mode,
)
from appliance.sandbox.spec import SandboxSpec, create_request

BEST = HostTraits(
    is_root=True, has_cgroup_v2=True, has_systemd=True, can_raise_limits=True,
    controllers=frozenset({"cpu", "memory", "pids"}), max_files=1 << 20, max_processes=1 << 20, can_map_ids=True,
    can_mount=True,
)  # fmt: skip
SPEC = SandboxSpec("box", "an-image", ("true",))


def test_a_host_that_can_do_all_has_nothing_weaker() -> None:
    mode, weaker = sandbox_mode(BEST, True)
    assert mode == "rootful, cgroup v2, limits of cpu, memory, pids, a user namespace each, folders of a fixed size"
    assert weaker == []


def test_each_thing_a_host_lacks_is_told() -> None:
    poor = replace(BEST, is_root=False, can_mount=False, controllers=frozenset(), has_cgroup_v2=False)
    mode, weaker = sandbox_mode(poor, False)
    assert mode.startswith("rootless, cgroup v1, limits of none")
    assert [words.partition(" ")[0] for words in weaker] == ["no", "workspace", "the"]
    old_kernel = sandbox_mode(replace(BEST, can_map_ids=False), True)[1]
    assert "user namespace" in old_kernel[0]


def test_the_user_namespace_is_asked_for_as_the_host_can() -> None:
    places = PodmanPlaces.under(Path("/nowhere"))
    assert create_request(SPEC, places, BEST)["userns"] == {"nsmode": "private"}
    assert "userns" not in create_request(SPEC, places, replace(BEST, can_map_ids=False))
    keep = create_request(SPEC, places, replace(BEST, is_root=False))["userns"]
    assert keep == {"nsmode": "keep-id", "value": "uid=1000,gid=1000"}


@pytest.mark.parametrize(("told", "is_old"), [("podman version 4.3.1", False), ("5.4.2", False), ("3.4.4", True),
                                              ("podman version 4.2.0", True), ("?", False)])  # fmt: skip
def test_a_podman_older_than_4_3_is_too_old(told: str, is_old: bool) -> None:
    assert is_too_old(told) is is_old


def test_a_user_without_enough_ids_is_told_from_one_with(tmp_path: Path) -> None:
    (tmp_path / "subuid").write_text("ann:100000:65536\nbob:165536:1000\nodd line\n")
    assert has_subids("ann", tmp_path / "subuid")
    assert not has_subids("bob", tmp_path / "subuid")
    assert not has_subids("eve", tmp_path / "subuid")
    assert not has_subids("ann", tmp_path / "none")


@pytest.mark.parametrize(
    ("said", "remedy"),
    [
        ("no subuid ranges found for user", "usermod --add-subuids"),
        ("write /x: no space left on device", "free disk space"),
        ("crun: cgroups in hybrid mode not supported", "install runc"),
        ("open /x: permission denied", "who owns"),
        ("something else", "corral doctor"),
    ],
)
def test_the_last_words_of_a_podman_that_does_not_start_have_a_remedy(said: str, remedy: str) -> None:
    assert remedy in remedy_of(said)


@pytest.mark.parametrize(
    ("said", "cause", "remedy"),
    [
        ("x: image not known", "no_image", "corral images build"),
        ('exec: "sh": executable file not found in $PATH', "no_start", "lacks true"),
        ("write /x: no space left on device", "no_space", "free disk space"),
        ("anything", "no_start", "anything"),
    ],
)
def test_what_podman_refuses_is_named(said: str, cause: str, remedy: str) -> None:
    error = not_started(SPEC, said)
    assert error.cause == cause
    assert remedy in error.message


def test_podman_missing_is_named_with_its_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(HostError, match="podman is not installed") as caught:
        podman_environment(tmp_path)
    assert "install" in caught.value.remedy


def test_a_harness_that_sandboxes_itself_may_make_namespaces_and_nothing_more() -> None:
    def allowed(may_nest: bool) -> set[str]:
        rules = json.loads(profile(may_nest))["syscalls"]
        return {name for r in rules if r["action"] == "SCMP_ACT_ALLOW" and not r.get("includes") for name in r["names"]}

    assert {"unshare", "mount", "clone3"} <= allowed(True) - allowed(False)
    assert not {"bpf", "ptrace", "io_uring_setup", "keyctl"} & allowed(True)


def test_without_a_stock_profile_what_is_harmful_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("appliance.sandbox.seccomp.STOCK_PROFILES", (Path("/none"),))
    made = json.loads(profile())
    refused = {name for rule in made["syscalls"] if rule["action"] == "SCMP_ACT_ERRNO" for name in rule["names"]}
    assert made["defaultAction"] == "SCMP_ACT_ALLOW"
    assert {"unshare", "mount", "bpf", "ptrace", "init_module", "kexec_load", "socket"} <= refused
    assert STOCK_PROFILES[0] != Path("/none")


@pytest.mark.real
def test_an_image_without_a_shell_is_named(tmp_path: Path) -> None:
    for parent in (tmp_path, *tmp_path.parents[:2]):
        parent.chmod(parent.stat().st_mode | 0o055)
    (tmp_path / "proxy").mkdir()
    environment, ref = podman_environment(podman_home(home())), f"localhost/corral-shellless:{os.getpid()}"
    with tarfile.open(tmp_path / "empty.tar", "w") as tar:
        entry = tarfile.TarInfo("etc/passwd")
        text = b"agent:x:1000:1000::/:/bin/sh\n"
        entry.size = len(text)
        tar.addfile(entry, io.BytesIO(text))
    subprocess.run(["podman", "import", "-q", str(tmp_path / "empty.tar"), ref], env=environment, check=True)
    try:
        with pytest.raises(SandboxError, match="/bin/sh") as caught:
            anyio.run(start_in, tmp_path, ref)
        assert caught.value.cause == "no_start"
    finally:
        subprocess.run(["podman", "rmi", ref], env=environment, capture_output=True, check=True)


async def start_in(folder: Path, ref: str) -> None:
    limits = Limits(timeout_s=20)
    failure: SandboxError | None = None
    async with Podman(podman_home(home())) as podman, Pool([Host(podman)], folder / "s", {}, at_most=0) as pool:
        try:
            async with pool.slot(Kind(ref, limits, folder / "proxy"), "x") as slot:
                await slot.go(("true",), {}, limits)
        except SandboxError as error:
            failure = error
    if failure is not None:
        raise failure
