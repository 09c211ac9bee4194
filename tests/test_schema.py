"""Records of every released schema open, whole; a copy of what was there is kept."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from appliance.errors import StoreError
from appliance.lock import lock
from appliance.mounts import network_filesystem
from appliance.store import Store

RECORDS = Path(__file__).parent / "records"


@pytest.fixture(params=sorted(path.name for path in RECORDS.glob("*.sql")))
def released(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    path = tmp_path / "record.db"
    with sqlite3.connect(path) as db:
        db.executescript((RECORDS / request.param).read_text())
    db.close()
    return path


def test_a_released_record_keeps_every_call_token_and_reward(released: Path) -> None:
    store = Store.open(released)
    rollouts = store.rollouts("demo-1")
    assert [(r.id, r.reward, r.num_calls, r.num_sampled_tokens) for r in rollouts] == [
        (1, 0.25, 2, 6),
        (2, 0.5, 2, 6),
        (3, 0.75, 2, 6),
        (4, None, 0, 0),
    ]
    first, second = store.calls(2)
    assert first.request_bytes == b'{"model": "m", "messages": [{"role": "user", "content": "do it 2"}]}'
    assert second.response_bytes == b'{"answer":1}'
    assert first.sample is not None and second.sample is not None
    assert second.sample.prompt_ids.tolist() == [*range(10), 7, 8, 2, 20]
    assert second.sample.logprobs.tolist() == [-0.5, -0.25, -1.0]
    assert store.conversations(3)[0].startswith(b'{"messages":[]')
    assert store.steps("demo-1") == [(1, "done", {"loss": 0.5})]
    assert store.rows("PRAGMA foreign_key_check") == []


def test_the_copy_from_before_is_whole_and_made_once(released: Path) -> None:
    Store.open(released).close()
    (copy,) = released.parent.glob("record.db.before-*")
    with sqlite3.connect(copy) as db:
        assert db.execute("SELECT count(*) FROM calls").fetchone()[0] == 7
    db.close()
    assert copy.stat().st_mode & 0o777 == 0o600
    before = copy.read_bytes()
    Store.open(released).close()
    assert [copy] == list(released.parent.glob("record.db.before-*")) and copy.read_bytes() == before


def test_a_reader_does_not_migrate_but_says_how(released: Path) -> None:
    with pytest.raises(StoreError, match="written by an older Corral") as error:
        Store.open(released, readonly=True)
    assert "corral db migrate" in error.value.remedy
    assert not list(released.parent.glob("*.before-*"))


def test_a_record_is_not_migrated_under_a_live_supervisor(released: Path) -> None:
    ours = "import sys; from pathlib import Path; from appliance.store import Store; Store.open(Path(sys.argv[1]))"
    with lock(released.parent, "demo-1"):
        told = subprocess.run([sys.executable, "-c", ours, str(released)], capture_output=True, text=True, check=False)
        assert "still runs on it with an older Corral" in told.stderr
        Store.open(released).close()  # the supervisor itself may


def test_a_migration_that_breaks_off_leaves_the_old_schema(released: Path) -> None:
    with sqlite3.connect(released) as db:
        db.execute("CREATE TABLE frames(taken)")
    db.close()
    with pytest.raises(StoreError, match="frames"):
        Store.open(released)
    with sqlite3.connect(released) as db:
        assert db.execute("SELECT count(*) FROM calls WHERE length(request) > 0").fetchone()[0] == 7
        assert db.execute("SELECT count(*) FROM sqlite_master WHERE name='bodies'").fetchone()[0] == 0
    db.close()


def test_a_call_whose_bytes_were_damaged_before_stays_and_is_named(released: Path) -> None:
    with sqlite3.connect(released) as db:
        db.execute("UPDATE calls SET messages = X'00' WHERE id = 4")
    db.close()
    store = Store.open(released)
    assert len(store.calls(3)) == 2
    with pytest.raises(StoreError, match="call 4: its bodies are damaged"):
        store.calls(2)


def test_network_file_systems_are_told_from_local_ones(tmp_path: Path) -> None:
    table = tmp_path / "mountinfo"
    table.write_text(
        "22 1 8:1 / / rw - ext4 /dev/sda1 rw\n"
        "30 22 0:40 / /mnt/a\\040b rw shared:1 - nfs4 server:/x rw\n"
        "31 30 0:41 / /mnt/a\\040b/local rw - xfs /dev/sdb rw\n"
    )
    assert network_filesystem(Path("/mnt/a b/c"), table) == "nfs4"
    assert network_filesystem(Path("/mnt/a b/local/c"), table) == ""
    assert network_filesystem(Path("/home"), table) == ""
    assert network_filesystem(Path("/home"), tmp_path / "absent") == ""
