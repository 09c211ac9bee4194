"""What decides an image's tag, and what a failed build tells its user."""

from __future__ import annotations

import re
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from appliance.cli import main
from appliance.config.runconfig import home as corral_home
from appliance.config.runconfig import podman_home
from appliance.errors import HarnessFileError, HostError
from appliance.harness.harness import Harness, load_harnesses
from appliance.sandbox.images.build import base_ref, build_images, host_settings, image_ref, node_ref
from appliance.sandbox.settings import podman_environment

HARNESSES = load_harnesses(Path(__file__).resolve().parents[2] / "harnesses")
PI = HARNESSES["pi"]


def broken(layer: str) -> Harness:
    """A harness over the base whose layer is `layer`."""
    return replace(PI, name="broken", image="", layer="FROM {base}\n" + layer)


@pytest.fixture(scope="session")
def home() -> Path:
    folder = podman_home(corral_home())
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def test_a_tag_is_the_hash_of_what_decides_the_image() -> None:
    assert re.fullmatch(r"localhost/corral-pi:[0-9a-f]{12}", image_ref(PI))
    assert image_ref(PI) == image_ref(replace(PI, argv=("something", "else")))
    assert image_ref(PI) != image_ref(replace(PI, layer=PI.layer + "RUN true\n"))
    shared = [harness for harness in HARNESSES.values() if harness.image != harness.name]
    assert len({base_ref(), node_ref(), *map(image_ref, HARNESSES.values())}) == 2 + len(HARNESSES) - len(shared)
    assert shared and all(image_ref(harness) == image_ref(HARNESSES[harness.image]) for harness in shared)


def test_the_hosts_registry_settings_are_lent_and_files_keep_their_paths(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = tmp_path / "ca.pem"
    bundle.write_text("x")
    monkeypatch.setenv("PIP_CERT", str(bundle))
    monkeypatch.setenv("NPM_CONFIG_REGISTRY", "https://mirror.example/ 'quoted'")
    monkeypatch.setenv("MY_SECRET", "no")
    with host_settings() as options:
        assert f"--volume={bundle}:{bundle}:ro" in options
        source = next(o for o in options if o.endswith(":/run/host/env:ro")).removeprefix("--volume=").split(":")[0]
        text = Path(source).read_text()
        read = subprocess.run(
            ["sh", "-c", f'. {source}; printf %s "$NPM_CONFIG_REGISTRY"'], capture_output=True, text=True, check=True
        )
    assert read.stdout == "https://mirror.example/ 'quoted'"
    assert "MY_SECRET" not in text
    assert not Path(source).exists()


def test_no_podman_is_said_with_its_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(HostError, match="podman is not installed"):
        build_images(tmp_path, [PI], print)


def test_an_unknown_harness_on_the_command_line_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CORRAL_HOME", str(tmp_path))
    assert main(["images", "build", "nothing"]) == 1
    told = capsys.readouterr().err
    assert "there is no harness 'nothing'" in told and "known: aider, claude-code" in told


@pytest.mark.real
def test_what_is_built_is_not_built_again(home: Path) -> None:
    build_images(home, [PI], print)
    lines: list[str] = []
    assert build_images(home, [PI], lines.append)["pi"] == image_ref(PI)
    assert all("already built" in line for line in lines)


@pytest.mark.real
def test_nothing_of_the_hosts_settings_stays_in_an_image(home: Path) -> None:
    build_images(home, [PI], print)
    script = (
        "find / -xdev \\( -name .npmrc -o -name pip.conf -o -path '/run/host/*' \\) -size +0 2>/dev/null;"
        " cat /etc/resolv.conf; env | grep -E '^(PIP|NPM|SSL|NODE_EXTRA)' ; cat /etc/hostname"
    )
    command = ["podman", "run", "--rm", "--network=none", "--hostname=x", "--no-hosts", image_ref(PI)]
    command += ["sh", "-c", script]
    shown = subprocess.run(command, env=podman_environment(home), capture_output=True, text=True, check=False)
    assert shown.stdout.split() == ["x"], shown.stdout + shown.stderr


@pytest.mark.real
@pytest.mark.parametrize(
    ("layer", "error", "remedy"),
    [
        ("RUN false", HarnessFileError, "correct image.layer"),
        ("RUN echo 'getaddrinfo ENOTFOUND registry.example' && false", HostError, "registries"),
        ("RUN echo 'write error: No space left on device' && false", HostError, "free some space"),
        ("RUN true", HarnessFileError, "make version and image.layer agree"),
    ],
)
def test_a_failed_build_says_what_to_do(home: Path, layer: str, error: type[Exception], remedy: str) -> None:
    with pytest.raises(error) as caught:
        build_images(home, [broken(layer)], print)
    assert remedy in caught.value.remedy
    listed = subprocess.run(
        ["podman", "images", "--format={{.Repository}}"], env=podman_environment(home), capture_output=True, text=True,
        check=True,
    )  # fmt: skip
    assert "corral-broken" not in listed.stdout
