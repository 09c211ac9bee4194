"""What a run leaves for use elsewhere: the adapter as peft reads it, or the base with the adapter merged into it.

Merged means into the *unquantised* base: adding to NF4 values and quantising them again would move the base by more
than the adapter does. The adapter was trained on the quantised values, so the merged model differs by their rounding.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from peft import PeftModel
from transformers import AutoModelForCausalLM

from appliance.errors import ModelError
from appliance.system.files import new_folder
from appliance.train.bases import check_base
from appliance.train.checkpoints import check
from appliance.train.policy import ADAPTER_CONFIG, ADAPTER_WEIGHTS, ORIGIN, check_adapter, rank_of
from appliance.train.weights import copy_beside


def export_adapter(adapter: Path, folder: Path) -> Path:
    """Writes the adapter's files to `folder`, whole or not at all."""
    check(adapter)
    with _fresh(folder) as temporary:
        for name in (ADAPTER_WEIGHTS, ADAPTER_CONFIG, ORIGIN):
            if (adapter / name).is_file():
                shutil.copyfile(adapter / name, temporary / name)
    return folder


def export_merged(base: Path, adapter: Path, folder: Path) -> Path:
    """Writes an ordinary model folder: `base` in the dtype it is stored in, plus the adapter, plus its tokenizer."""
    check(adapter)
    check_base(base)
    check_adapter(adapter, base, rank_of(adapter))
    plain: Any = AutoModelForCausalLM.from_pretrained(base, local_files_only=True, dtype="auto")
    merged: Any = PeftModel.from_pretrained(plain, str(adapter)).merge_and_unload()
    with _fresh(folder) as temporary:
        merged.save_pretrained(temporary)
        copy_beside(base, temporary)
    return folder


def _fresh(folder: Path) -> Any:
    """A folder that is not there yet: an export never replaces anything."""
    if folder.exists():
        raise ModelError(f"{folder}: already there", "name a folder that does not exist")
    return new_folder(folder)
