"""Where things lie: the checkout, the home of record and runs, the home of images. It imports nothing of ours."""

from __future__ import annotations

import os
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[2]


def home() -> Path:
    """`$CORRAL_HOME`, by default `corral` in the XDG data folder."""
    if explicit := os.environ.get("CORRAL_HOME"):
        return Path(explicit).expanduser().resolve()
    return Path(os.environ.get("XDG_DATA_HOME", "~/.local/share")).expanduser().resolve() / "corral"


def podman_home(home: Path) -> Path:
    """Whose images and container storage are used: `$CORRAL_PODMAN_HOME`, so that records can share one, or `home`."""
    return Path(os.environ.get("CORRAL_PODMAN_HOME") or home).expanduser().resolve()
