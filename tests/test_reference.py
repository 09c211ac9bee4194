"""docs/reference.md says what the code says; what a command ends with is what the page promises."""

from __future__ import annotations

import errno
import os
import re
import runpy
import signal
import subprocess
import sys
import time
from pathlib import Path

from appliance.cli import ENVIRONMENT, EXIT_CODES, main
from appliance.config.runconfig import CHECKOUT, RunConfig, leaves

DOCS = CHECKOUT / "docs"
PATIENCE_S = 60
INNER = {"CORRAL_BENCH_OUT", "CORRAL_TESTS", "CORRAL_VERIFIER_LOGS", "CORRAL_WORKSPACE"}
"""Set by one of our programs for another, not by people."""


def test_the_reference_is_what_the_code_says() -> None:
    wanted = runpy.run_path(str(DOCS / "make_reference.py"))["page"]()
    assert (DOCS / "reference.md").read_text() == wanted, "stale: python docs/make_reference.py"


def test_every_key_of_a_run_is_in_the_reference_with_its_meaning() -> None:
    page = (DOCS / "reference.md").read_text()
    for key, _, meaning in leaves(RunConfig()):
        assert f"| `{key.rpartition('.')[2]}` |" in page and meaning.replace("|", "\\|") in page, key


def test_every_variable_that_is_read_is_in_the_reference() -> None:
    files = [*CHECKOUT.glob("appliance/**/*.py"), *CHECKOUT.glob("tui/**/*.py"), CHECKOUT / "install.sh"]
    read = {name for file in files for name in re.findall(r"\bCORRAL_[A-Z]+(?:_[A-Z]+)*", file.read_text())}
    own = {name for name in read if not name.startswith("CORRAL_RUN")} - INNER
    assert own == {name for name in ENVIRONMENT if name.startswith("CORRAL_")} - {"CORRAL_RUN_…"}


def test_what_is_interrupted_says_so_and_ends_with_the_code_of_the_page(tmp_path: Path) -> None:
    waited_for = tmp_path / "run.toml"
    os.mkfifo(waited_for)  # a file that never ends
    # What started the tests may ignore the signal, as a shell does for what it puts in the background.
    heard = ["env", "--default-signal=INT"]
    command = [*heard, sys.executable, "-m", "appliance.cli", "config", "show", str(waited_for)]
    child = subprocess.Popen(command, cwd=CHECKOUT, stderr=subprocess.PIPE, text=True)
    try:
        writer, until = -1, time.monotonic() + PATIENCE_S
        while writer < 0 and time.monotonic() < until:
            try:
                writer = os.open(waited_for, os.O_WRONLY | os.O_NONBLOCK)
            except OSError as error:
                assert error.errno == errno.ENXIO, error  # nobody reads yet
                time.sleep(0.05)
        child.send_signal(signal.SIGINT)
        _, said = child.communicate(timeout=PATIENCE_S)
        os.close(writer)
    finally:
        child.kill()
    assert said == "corral: interrupted\n" and child.returncode == 130 and 130 in EXIT_CODES


def test_wrong_usage_is_two_as_the_page_says() -> None:
    try:
        main(["nonsense"])
    except SystemExit as ended:
        assert ended.code == 2 and 2 in EXIT_CODES
    else:
        raise AssertionError("an unknown command was taken")
