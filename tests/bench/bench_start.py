"""How long commands take to start: ratios to starting Python itself, best of several. Prints one JSON object.

python tests/bench/bench_start.py
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time

REPEATS = 5
COMMANDS = {
    "python": ["-c", "pass"],
    "corral --help": ["-m", "appliance.cli", "--help"],
    "corral status": ["-m", "appliance.cli", "status"],
    "supervisor imported": ["-c", "import appliance.runs.supervisor"],
    "tui imported": ["-c", "import tui.app"],
}


def best_s(arguments: list[str]) -> float:
    """Wall seconds of the fastest of `REPEATS` starts, in an empty home."""
    times = []
    with tempfile.TemporaryDirectory() as home:
        for _ in range(REPEATS):
            started = time.perf_counter()
            subprocess.run(
                [sys.executable, *arguments], env=os.environ | {"CORRAL_HOME": home}, check=True, capture_output=True
            )
            times.append(time.perf_counter() - started)
    return min(times)


def main() -> None:
    """Prints seconds and ratios."""
    seconds = {name: best_s(arguments) for name, arguments in COMMANDS.items()}
    rows = {name: {"seconds": round(s, 3), "ratio": round(s / seconds["python"], 1)} for name, s in seconds.items()}
    print(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
