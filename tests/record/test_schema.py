"""Records of every released schema open, whole; a copy of what was there is kept."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from appliance.errors import StoreError
from appliance.operate import record_check
from appliance.record import file, schema
from appliance.record.lock import lock
from appliance.record.store import Store
from appliance.system.mounts import network_filesystem

RECORDS = Path(__file__).parents[1] / "records"


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
    ours = (
        "import sys; from pathlib import Path; from appliance.record.store import Store; Store.open(Path(sys.argv[1]))"
    )
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


NAMES = [migration.__name__ for migration in schema._migrations]
ROWS = {
    "retention": ["UPDATE runs SET pruned = 'bodies', pruned_at = 5.0 WHERE id = 'demo-1'"],
    "loss_inputs": ["INSERT INTO loss_inputs VALUES('demo-1', 1, 1, 'abc')"],
    "verdicts": ["INSERT INTO verdicts VALUES(1, 0, 'main', NULL, 1, 1, '')"],
    "templates": ["UPDATE calls SET template = 'qwen' WHERE id = 1"],
}
"""What a record of that schema may hold beside what the first could."""


@contextmanager
def opened(path: Path) -> Iterator[sqlite3.Connection]:
    db = sqlite3.connect(path, isolation_level=None)
    yield db
    db.close()


def columns(path: Path) -> dict[str, list[tuple[object, ...]]]:
    with opened(path) as db:
        names = [row[0] for row in db.execute("SELECT name FROM sqlite_master WHERE name NOT LIKE '%sqlite_%'")]
        return {name: db.execute(f"SELECT * FROM pragma_table_xinfo('{name}')").fetchall() for name in sorted(names)}


@pytest.mark.parametrize("done", range(1, len(NAMES)), ids=NAMES[:-1])
def test_a_record_of_every_schema_on_the_way_is_brought_to_this_one_whole(
    done: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "record.db"
    with opened(path) as db, monkeypatch.context() as earlier:
        db.executescript((RECORDS / "first_schema.sql").read_text())
        earlier.setattr(schema, "_migrations", schema._migrations[:done])
        schema.migrate(path, db)
        for name in NAMES[:done]:
            for statement in ROWS.get(name, ()):
                db.execute(statement)
        before = db.execute("SELECT name FROM _sqlite_migrations ORDER BY id").fetchall()
    assert [name for (name,) in before] == NAMES[:done]
    for copy in tmp_path.glob("record.db.before-*"):  # of the way there
        copy.unlink()

    store = Store.open(path)
    assert [row["name"] for row in store.rows("SELECT name FROM _sqlite_migrations ORDER BY id")] == NAMES
    broken = {name: told for name, told in record_check.check(store).broken.items() if told}
    assert broken == {"I6": ["version 1 of run demo-1: its adapter folder /x/v1 is missing"]}  # it never was here
    rollouts = store.rollouts("demo-1")
    assert [(r.reward, r.num_calls, r.num_sampled_tokens) for r in rollouts] == [
        (0.25, 2, 6), (0.5, 2, 6), (0.75, 2, 6), (None, 0, 0),
    ]  # fmt: skip
    samples = [call.sample for number in (1, 2, 3) for call in store.calls(number)]
    assert [s.sampled_ids.tolist() for s in samples if s is not None] == [[7, 8, n] for n in (1, 1, 2, 2, 3, 3)]
    kept = [
        store.rows("SELECT pruned p FROM runs")[0]["p"] == "bodies",
        store.rows("SELECT count(*) n FROM loss_inputs")[0]["n"] == 1,
        store.rows("SELECT count(*) n FROM verdicts")[0]["n"] == 1,
        store.rows("SELECT template t FROM calls WHERE id = 1")[0]["t"] == "qwen",
    ]
    assert kept == [name in NAMES[:done] for name in ROWS]
    store.close()

    (copy,) = tmp_path.glob("record.db.before-*")
    assert copy.name == f"record.db.before-{NAMES[done]}"
    with opened(copy) as db:
        assert db.execute("SELECT name FROM _sqlite_migrations ORDER BY id").fetchall() == before
        assert db.execute("SELECT count(*) FROM calls").fetchone() == (7,)
    Store.open(tmp_path / "new" / "record.db").close()
    assert columns(path) == columns(tmp_path / "new" / "record.db")


def test_a_record_on_a_network_disk_is_refused_before_a_file_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file, "network_filesystem", lambda folder: "nfs4" if folder == tmp_path else "")
    with pytest.raises(StoreError, match=rf"{tmp_path}/record.db: on a network file system \(nfs4\)") as refused:
        Store.open(tmp_path / "record.db")
    assert refused.value.remedy == "set CORRAL_HOME to a folder on a local disk"
    assert list(tmp_path.iterdir()) == []


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
