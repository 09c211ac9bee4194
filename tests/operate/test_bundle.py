"""A bundle made, gone on with, checked and installed from: a small one, of one hand-made wheel, by the real pip."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import stat
import subprocess
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from appliance.cli import main
from appliance.config.runconfig import CHECKOUT
from appliance.errors import HostError
from appliance.operate import bundle, wheelhouse
from appliance.operate.bundle import SUMS, Wish
from appliance.operate.sbom import Part, cyclonedx

# A build backend in ten lines, so that the small checkout installs without setuptools in its wheelhouse.
BACKEND = """
import zipfile
def build_editable(folder, config_settings=None, metadata_directory=None):
    name = "corral-0.1-py3-none-any.whl"
    info = "corral-0.1.dist-info"
    with zipfile.ZipFile(f"{folder}/{name}", "w") as wheel:
        wheel.writestr("corral_program.py", "def main():\\n    import tiny_thing\\n    print(tiny_thing.WORD)\\n")
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\\nName: corral\\nVersion: 0.1\\n")
        kind = "Wheel-Version: 1.0\\nGenerator: t\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n"
        wheel.writestr(f"{info}/WHEEL", kind)
        wheel.writestr(f"{info}/entry_points.txt", "[console_scripts]\\ncorral = corral_program:main\\n")
        wheel.writestr(f"{info}/RECORD", "")
    return name
"""
PYPROJECT = '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'


def a_wheel(folder: Path, name: str, version: str) -> Path:
    path = folder / f"{name}-{version}-py3-none-any.whl"
    info = f"{name}-{version}.dist-info"
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr(f"{name}.py", f"WORD = 'from the bundle {version}'\n")
        wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\nLicense: MIT\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: t\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", f"{name}.py,,\n")
    return path


@pytest.fixture
def wish(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Wish:
    """A checkout with a lock of one package, which pip finds in a folder and nowhere else; and a model folder."""
    index, checkout, model = (tmp_path / name for name in ("index", "checkout", "models/tiny"))
    for folder in (index, checkout / "locks", model):
        folder.mkdir(parents=True)
    a_wheel(index, "tiny_thing", "1.0")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(index))
    monkeypatch.setenv("CORRAL_HOME", str(tmp_path / "home"))
    (checkout / "locks" / "cpu.txt").write_text("# one\ntiny-thing==1.0\n")
    (checkout / "pyproject.toml").write_text(PYPROJECT)
    (checkout / "backend.py").write_text(BACKEND)
    shutil.copy2(CHECKOUT / "install.sh", checkout / "install.sh")
    (model / "config.json").write_text("{}")
    (model / "model.safetensors").write_bytes(b"weights")
    return Wish(tmp_path / "home", checkout / "locks" / "cpu.txt", {}, [model], checkout)


def made(wish: Wish, target: Path, fetch: bool = False) -> list[str]:
    """Makes it; what was told. Without `fetch` the wheel is put there first, as an interrupted bundle has it."""
    told: list[str] = []
    if not fetch and not (target / "wheels").exists():
        (target / "wheels").mkdir(parents=True)
        (target / "PLATFORM").write_text(bundle.platform(wish.lock))
        a_wheel(target / "wheels", "tiny_thing", "1.0")
    bundle.make(wish, target, told.append)
    return told


def resummed(target: Path) -> None:
    """Sums that agree with files that somebody changed."""
    bundle._write_sums(target, lambda line: None)


# ------------------------------------------------------------------ making


def test_a_bundle_holds_program_wheels_models_materials_and_sums(wish: Wish, tmp_path: Path) -> None:
    target = tmp_path / "b"
    told = made(wish, target)
    assert told[0].startswith("checkout: ") and any(line.startswith("wheels: at most") for line in told)
    names = {str(p.relative_to(target)) for p in target.rglob("*") if p.is_file()}
    wheel = "wheels/tiny_thing-1.0-py3-none-any.whl"
    assert names == {
        SUMS, "PLATFORM", "sbom.json", wheel, "wheels/wheels.lock", "models/tiny/config.json",
        "models/tiny/model.safetensors", "corral/locks/cpu.txt", "corral/pyproject.toml", "corral/backend.py",
        "corral/install.sh",
    }  # fmt: skip
    digest = hashlib.sha256((target / wheel).read_bytes()).hexdigest()
    assert (target / "wheels" / "wheels.lock").read_text().splitlines()[1:] == [
        f"tiny-thing==1.0 --hash=sha256:{digest}"
    ]
    assert os.access(target / "corral" / "install.sh", os.X_OK)
    assert (target / "PLATFORM").read_text().split()[:2] == [os.uname().sysname, os.uname().machine]
    done = subprocess.run(["sha256sum", "--check", "--strict", SUMS], cwd=target, capture_output=True, check=True)
    assert done.stdout.count(b"OK") == len(names) - 1 and bundle.check(target) == []


def test_the_bill_of_materials_names_hash_and_licence(wish: Wish, tmp_path: Path) -> None:
    made(wish, tmp_path / "b")
    document = json.loads((tmp_path / "b" / "sbom.json").read_text())
    assert (document["bomFormat"], document["specVersion"]) == ("CycloneDX", "1.6")
    by_name = {c["name"]: c for c in document["components"]}
    assert by_name["tiny-thing"]["purl"] == "pkg:pypi/tiny-thing@1.0"
    assert len(by_name["tiny-thing"]["hashes"][0]["content"]) == 64
    assert by_name["tiny"]["type"] == "machine-learning-model"
    weights = hashlib.sha256(b"weights").hexdigest()
    assert by_name["tiny"]["hashes"] == [{"alg": "SHA-256", "content": weights}]
    again = [Part("library", "a", "1"), Part("library", "b", "2")]
    assert cyclonedx(again, "v", "t") == cyclonedx(reversed(again), "v", "t")


@pytest.mark.slow
def test_an_interrupted_bundle_is_gone_on_with(wish: Wish, tmp_path: Path) -> None:
    target = tmp_path / "b"
    assert any("fetching tiny-thing==1.0" in line for line in made(wish, target, fetch=True))
    assert not any("fetching" in line for line in made(wish, target))  # whole: nothing is fetched again
    (target / SUMS).unlink()
    (wheel,) = (target / "wheels").glob("*.whl")
    wheel.write_bytes(wheel.read_bytes()[:-40])
    (target / "corral" / ".pyproject.toml.part").write_text("half")
    assert bundle.check(target) == [f"{SUMS} is missing: the bundle was cut short"]
    assert any("fetching tiny-thing==1.0" in line for line in made(wish, target))
    assert wheelhouse.is_whole(wheel) and bundle.check(target) == []
    assert not (target / "corral" / ".pyproject.toml.part").exists()


@pytest.mark.slow
def test_a_package_that_no_index_has_is_named_and_leaves_a_bundle_to_go_on_with(wish: Wish, tmp_path: Path) -> None:
    wish.lock.write_text("tiny-thing==1.0\nnobody-has-this==9\n")
    with pytest.raises(HostError, match="nobody-has-this==9") as caught:
        made(wish, tmp_path / "b")
    assert "goes on" in caught.value.remedy and not (tmp_path / "b" / SUMS).exists()


def test_a_folder_of_something_else_and_one_of_another_platform_are_refused(wish: Wish, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("x")
    with pytest.raises(HostError, match="not empty and no bundle"):
        made(wish, tmp_path / "mine", fetch=True)
    made(wish, tmp_path / "b")
    (tmp_path / "b" / "PLATFORM").write_text("Linux\naarch64\npython3.12\ngpu\n")
    with pytest.raises(HostError, match=r"for Linux aarch64 python3\.12 gpu"):
        made(wish, tmp_path / "b")


def test_a_model_folder_without_a_model_is_refused_before_anything_is_fetched(wish: Wish, tmp_path: Path) -> None:
    (wish.models[0] / "config.json").unlink()
    with pytest.raises(HostError, match="no model folder"):
        made(wish, tmp_path / "b", fetch=True)
    assert not (tmp_path / "b").exists()


def test_the_command_names_what_is_damaged(wish: Wish, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "b"
    made(wish, target)
    assert main(["bundle", str(target), "--check", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["whole"]
    flip(target / "models" / "tiny" / "model.safetensors")
    (target / "stray").write_text("x")
    assert main(["bundle", str(target), "--check"]) == 1
    said = capsys.readouterr().err
    assert "models/tiny/model.safetensors is damaged" in said and "stray is not of this bundle" in said


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))


# ------------------------------------------------------------------ installing from it


def install(folder: Path, target: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """install.sh of the checkout in `folder`, with a home of its own."""
    home = folder.parent / "user"
    home.mkdir(exist_ok=True)
    own = {"HOME": str(home), "CORRAL_HOME": str(home / "state")}
    return subprocess.run(
        ["sh", "install.sh", "--offline", str(target), *words], cwd=folder, env=os.environ | own, capture_output=True,
        text=True, check=False, timeout=300,
    )  # fmt: skip


def test_a_home_that_cannot_be_written_is_named_before_anything_is_installed(wish: Wish, tmp_path: Path) -> None:
    (tmp_path / "user").write_text("a file where the home should be")  # as root no mode would keep us out
    own = {"HOME": str(tmp_path), "CORRAL_HOME": str(tmp_path / "user" / "state")}
    done = subprocess.run(
        ["sh", "install.sh"], cwd=wish.checkout, env=os.environ | own, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1 and f"error: {tmp_path}/user/state (for images, runs" in done.stderr
    assert "remedy: set CORRAL_HOME" in done.stderr and not (wish.checkout / ".venv").exists()


def test_without_a_place_for_the_launcher_the_program_itself_is_named(wish: Wish, tmp_path: Path) -> None:
    text = (wish.checkout / "install.sh").read_text()
    launcher = "install_launcher() {" + text.partition("install_launcher() {")[2].partition("\n}\n")[0] + "\n}\n"
    script = f"set -eu; VENV=.venv; say() {{ printf '%s\\n' \"$*\"; }}\n{launcher}install_launcher"
    (tmp_path / ".local").write_text("a file where the folder should be")
    done = subprocess.run(
        ["sh", "-c", script], cwd=wish.checkout, env=os.environ | {"HOME": str(tmp_path)}, capture_output=True,
        text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert f"{tmp_path}/.local/bin is not writable; call {wish.checkout}/.venv/bin/corral" in done.stdout


def flipped(target: Path) -> None:
    flip(next((target / "wheels").glob("*.whl")))


def without_sums(target: Path) -> None:
    (target / SUMS).unlink()


def without_a_file(target: Path) -> None:
    (target / "models" / "tiny" / "model.safetensors").unlink()


def for_another_machine(target: Path) -> None:
    (target / "PLATFORM").write_text("Linux\naarch64\npython3.11\ncpu\n")


def for_another_python(target: Path) -> None:
    (target / "PLATFORM").write_text(f"Linux\n{os.uname().machine}\npython3.99\n{'cpu'}\n")


def of_another_version(target: Path) -> None:
    (target / "corral" / "locks" / "cpu.txt").write_text("tiny-thing==2.0\n")
    resummed(target)


@pytest.mark.parametrize(
    ("spoil", "named"),
    [
        (flipped, "wheels/tiny_thing-1.0-py3-none-any.whl"),
        (without_sums, "cut short"),
        (without_a_file, "models/tiny/model.safetensors"),
        (for_another_machine, "the bundle is for Linux aarch64"),
        (for_another_python, "python3.99"),
        (of_another_version, "another Corral"),
    ],
)
def test_a_spoilt_bundle_is_named_and_nothing_is_installed(
    wish: Wish, tmp_path: Path, spoil: Callable[[Path], None], named: str
) -> None:
    target = tmp_path / "b"
    made(wish, target)
    spoil(target)
    done = install(wish.checkout, target)
    assert done.returncode == 1 and named in done.stderr and "remedy: " in done.stderr, done.stderr
    assert not (wish.checkout / ".venv").exists() and not (tmp_path / "user" / ".local").exists()


@pytest.mark.slow
@pytest.mark.real
def test_a_small_bundle_installs_and_one_that_fails_puts_the_old_environment_back(wish: Wish, tmp_path: Path) -> None:
    target = tmp_path / "b"
    made(wish, target)
    done = install(wish.checkout, target)
    assert done.returncode == 0, done.stdout + done.stderr
    program = wish.checkout / ".venv" / "bin" / "corral"
    run = subprocess.run([str(program)], capture_output=True, text=True, check=True)
    assert run.stdout == "from the bundle 1.0\n"
    assert (tmp_path / "user" / "state" / "models" / "tiny" / "model.safetensors").read_bytes() == b"weights"
    launcher = tmp_path / "user" / ".local" / "bin" / "corral"
    assert stat.S_IMODE(launcher.stat().st_mode) == 0o755
    assert "is installed" in install(wish.checkout, target).stdout

    lock = target / "wheels" / "wheels.lock"  # sums agree, but not the hash that pip is told
    digest = lock.read_text().rpartition("sha256:")[2].strip()
    lock.write_text(lock.read_text().replace(digest, "0" * 64))
    resummed(target)
    (wish.checkout / ".venv" / ".locked").write_text("of an earlier lock")
    failed = install(wish.checkout, target)
    assert failed.returncode == 1 and "remedy" in failed.stderr
    assert subprocess.run([str(program)], capture_output=True, text=True, check=True).stdout == "from the bundle 1.0\n"
    assert not (wish.checkout / ".venv.before").exists()
