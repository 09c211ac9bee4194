"""Before anything imports torch: idle threads sleep, so that tests do not fight with the parts they start."""

from __future__ import annotations

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
