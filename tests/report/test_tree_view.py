"""`corral tree`: branch points, tokens, causes and rewards on one screen; one safe page with everything."""

from __future__ import annotations

import json
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer

from appliance.cli import main
from appliance.config.runconfig import RunConfig
from appliance.errors import ExportError
from appliance.record.store import Store
from appliance.report.fork_report import decoder
from appliance.report.trace import recollect
from appliance.report.tree_view import text, view
from appliance.report.treehtml import page
from appliance.system.files import written
from tests.support.tiny_tokenizer import QWEN_STYLE, model_folder, tokenizer_json
from tests.support.told_record import told_record


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return told_record(tmp_path)


def test_the_view_counts_tokens_once_and_shows_where_paths_part(store: Store) -> None:
    found = view(store.path.parent, recollect(store, 1))
    # prompts 3 and 7 and 7, answers 2 and 3 and 2: 24 flat; each once: 3 + 2 + 2 + 3 + 2
    assert (found["flat_tokens"], found["unique_tokens"], found["branch_points"]) == (24, 12, 1)
    assert found["reward"] == 1.0 and found["advantage"] > 0
    assert [node["tokens"] for node in found["nodes"] if node["call"] is None] == [3, 2]
    (fork,) = found["forks"]
    assert fork["call"] == 2 and found["calls"][2]["cause"] == fork["cause"]


def test_the_screen_indents_only_at_branch_points_and_keeps_control_characters_out(store: Store) -> None:
    lines = text(view(store.path.parent, recollect(store, 1))).splitlines()
    assert lines[0].startswith("rollout 1  pi  count-1  graded  reward 1")
    assert "3 calls" in lines[1] and "1 branch points  12 unique of 24 tokens, 50 %" in lines[1]
    assert lines[2] == "○ 3 prompt" and lines[3].startswith("● 2 sampled  call 0  continuation")
    assert lines[5].startswith("├─ ● ") and lines[6].startswith("└─ ● ")
    assert not any(ord(c) < 32 for line in lines for c in line)
    said = view(store.path.parent, recollect(store, 1))
    said["calls"][0]["answer"] = "→ 語 \u202e\x1b[31m\x9b"
    assert '"→ 語 \\u202e\\u001b[31m\\x9b"' in text(said).splitlines()[3]


def test_ids_are_read_by_the_tokenizer_of_the_folder_that_a_lone_proxy_was_given(store: Store, tmp_path: Path) -> None:
    folder = model_folder(tmp_path / "anywhere" / "model", QWEN_STYLE)
    ids = np.array(Tokenizer.from_str(tokenizer_json()).encode("<|im_start|>so it went").ids, np.int32)
    run = store.run("r1")
    given = replace(run, config=RunConfig(name="p").model_dump(mode="json") | {"model": {"path": str(folder)}})
    assert decoder(tmp_path, given)(ids) == "<|im_start|>so it went"
    assert decoder(tmp_path, run)(ids) == " ".join(map(str, ids))


def test_a_rollout_without_ids_is_shown_as_such(store: Store) -> None:
    assert "call 0  no ids" in text(view(store.path.parent, recollect(store, 3)))


class _Reader(HTMLParser):
    """Collects tags and whatever would be loaded or run."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.loads: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.loads += [f"{tag} {name}" for name, _ in attrs if name in ("src", "href") or name.startswith("on")]


def test_the_page_runs_nothing_loads_nothing_and_holds_every_body(store: Store) -> None:
    whole = "".join(page(store.path.parent, recollect(store, 1)))
    reader = _Reader()
    reader.feed(whole)
    assert not {"script", "b", "img", "link", "iframe"} & set(reader.tags) and reader.loads == []
    assert "default-src &#x27;none&#x27;" in whole
    assert whole.count("&lt;script&gt;alert(1)") >= 2  # in the bodies of the calls that hold it
    assert whole.count('class="l') == 7 and 'class="g' in whole  # seven sampled tokens, a positive advantage
    assert reader.tags.count("details") == whole.count("</details>")


def test_the_command_writes_the_page_once(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CORRAL_HOME", str(store.path.parent))
    target = tmp_path / "tree.html"
    assert main(["tree", "1", "--json", "--html", str(target)]) == 0
    assert json.loads(capsys.readouterr().out)["html"] == str(target)
    assert target.read_text().startswith("<!doctype html>")
    assert main(["tree", "1", "--html", str(target)]) == 1
    assert "is there already" in capsys.readouterr().err
    assert main(["tree", "99"]) == 1
    assert "the record holds no rollout 99" in capsys.readouterr().err


def test_a_file_that_could_not_be_finished_leaves_nothing_behind(tmp_path: Path) -> None:
    def write(fails: bool, target: Path) -> None:
        with written(target) as temporary:
            temporary.write_text("half")
            if fails:
                raise OSError(28, "No space left on device")

    with pytest.raises(ExportError, match="No space left on device"):
        write(True, tmp_path / "full.txt")
    assert list(tmp_path.iterdir()) == []
    write(False, tmp_path / "fine.txt")
    with pytest.raises(ExportError, match="is there already"):
        write(False, tmp_path / "fine.txt")
    with pytest.raises(ExportError, match="is no folder"):
        write(False, tmp_path / "none" / "fine.txt")
