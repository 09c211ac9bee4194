"""What the modules of `appliance.trees` bring along when they are loaded."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

CHECKOUT = Path(__file__).parents[2]
MODULES = sorted(file.stem for file in (CHECKOUT / "appliance" / "trees").glob("*.py") if file.stem != "__init__")


def test_trees_are_loaded_without_pydantic_and_without_any_other_package_of_ours() -> None:
    code = f"import sys, {', '.join(f'appliance.trees.{name}' for name in MODULES)}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=CHECKOUT)
    loaded = set(done.stdout.split())
    assert "pydantic" not in loaded
    ours = {name.split(".")[1] for name in loaded if name.startswith("appliance.")}
    assert ours == {"trees", "types"}
