"""The audit of installed packages, on a package made here and on this environment's own."""

from __future__ import annotations

import base64
import hashlib
import json
from importlib.metadata import Distribution, distribution
from pathlib import Path

import pytest

from appliance.cli import main
from appliance.config.runconfig import CHECKOUT
from appliance.errors import HostError
from appliance.operate import audit
from appliance.operate.wheelhouse import fill, pins, recorded_hashes


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """An installed package of one module."""
    code = b"x = 1\n"
    digest = base64.urlsafe_b64encode(hashlib.sha256(code).digest()).rstrip(b"=").decode()
    info = tmp_path / "thing-1.0.dist-info"
    info.mkdir()
    (tmp_path / "thing.py").write_bytes(code)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: thing\nVersion: 1.0\n")
    (info / "RECORD").write_text(f"thing.py,sha256={digest},6\nthing-1.0.dist-info/RECORD,,\n")
    return info


def test_a_package_as_it_was_installed_is_clean(package: Path) -> None:
    found = audit.audit({"thing": "1.0"}, [Distribution.at(package)])
    assert found.is_clean and (found.packages, found.files) == (1, 1)


def test_a_changed_a_missing_and_another_version_are_named(package: Path) -> None:
    (package.parent / "thing.py").write_text("x = 2\n")
    found = audit.audit({"thing": "1.1", "other": "2"}, [Distribution.at(package)])
    assert not found.is_clean
    assert found.altered == [f"thing: {package.parent / 'thing.py'} is not as it was installed"]
    assert found.other_version == ["thing 1.0, locked is 1.1"] and found.missing == ["other"]
    (package.parent / "thing.py").unlink()
    assert "No such file" in audit.audit({"thing": "1.0"}, [Distribution.at(package)]).altered[0]


def test_what_is_not_locked_is_told_and_is_no_fault(package: Path) -> None:
    found = audit.audit({"anyio": "1"}, [Distribution.at(package)])
    assert found.not_locked == ["thing 1.0"] and found.missing == ["anyio"]


def test_every_pin_of_the_cpu_lock_has_a_hash_on_record() -> None:
    lock = CHECKOUT / "locks" / "cpu.txt"
    hashes = recorded_hashes(lock)
    assert len(hashes) == len(pins(lock)) and all(len(sha256) == 64 for sha256 in hashes.values())
    assert audit.audit(installed=[]).without_hash == []


def test_this_environments_own_package_passes_by_the_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    anyio = distribution("anyio")
    monkeypatch.setattr(audit, "distributions", lambda: [anyio])
    monkeypatch.setattr(audit, "locked_versions", lambda: {"anyio": anyio.version})
    assert main(["audit", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["is_clean"] and told["files"] > 10 and "pip-audit" in told["vulnerabilities"]


def test_a_wheel_that_differs_from_the_one_on_record_is_refused(tmp_path: Path) -> None:
    import zipfile

    lock, house = tmp_path / "my.txt", tmp_path / "wheels"
    house.mkdir()
    lock.write_text("thing==1.0\n")
    wheel = house / "thing-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("thing.py", "x = 2\n")
    (tmp_path / "my.sha256").write_text(f"{'0' * 64}  {wheel.name}\n")
    with pytest.raises(HostError, match=r"thing-1\.0-py3-none-any\.whl: its sha256 is .* on record is 000"):
        fill(lock, house, lambda line: None)
    assert not wheel.exists()
