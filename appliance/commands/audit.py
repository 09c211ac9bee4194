"""`corral audit`: the installed packages against the lock and their own records."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from typing import Any

from appliance.commands.output import command_of, show


def add(commands: Any) -> None:
    """Adds audit."""
    command_of(commands, "audit", _audit, "are the installed packages the locked ones, each file as it was installed")


def _audit(arguments: argparse.Namespace) -> int:
    from appliance.operate import audit

    found = audit.audit()
    lines = [f"{found.packages} packages, {found.files} files compared with what was installed"]
    for title, items in (
        ("other versions than locked", found.other_version),
        ("locked but not installed", found.missing),
        ("changed since they were installed", found.altered),
        ("not in the lock (no fault)", found.not_locked),
        ("pins without a recorded hash", found.without_hash),
    ):
        lines += [f"{title}: {len(items)}", *(f"  {item}" for item in items[:20])] if items else []
    if not found.is_clean:
        lines.append("remedy: remove .venv and run ./install.sh again")
    lines.append(f"known vulnerabilities, {audit.VULNERABLE}")
    show(arguments, asdict(found) | {"is_clean": found.is_clean, "vulnerabilities": audit.VULNERABLE}, "\n".join(lines))
    return 0 if found.is_clean else 1
