"""What every file of this checkout keeps to, where neither the linter nor the import contracts look."""

from __future__ import annotations

import ast
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).parents[1]
PACKAGES = sorted(door.parent for part in ("appliance", "tui") for door in (CHECKOUT / part).rglob("__init__.py"))
MOST_MODULES = 19
MOST_MODULES_IN = {"appliance/train": 33, "appliance/commands": 33}
TOP = {"__init__", "cli", "types", "errors"}
LATE = {("operate", "capture"), ("operate", "harness"), ("operate", "sandbox"), ("runs", "sandbox")}
"""Packages that import another inside a function, besides those that do so to start fast: commands, bench and tui."""


def imports(file: Path) -> Iterator[tuple[int, str]]:
    """Line and dotted name of everything that a file imports, inside its functions too."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, name.name) for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            yield node.lineno, module
            yield from ((node.lineno, f"{module.removesuffix('.')}.{name.name}") for name in node.names)


def test_no_test_module_imports_another_test_module() -> None:
    found = [
        f"{file.relative_to(CHECKOUT)}:{line} imports {name}: move what both need into a module of tests/support"
        for file in sorted((CHECKOUT / "tests").rglob("*.py"))
        for line, name in imports(file)
        if name.rpartition(".")[2].startswith("test_")
    ]
    assert not found, "\n".join(found)


def name_of(package: Path) -> str:
    return str(package.relative_to(CHECKOUT))


@pytest.mark.parametrize("package", PACKAGES, ids=name_of)
def test_a_package_says_what_lives_there_and_what_never_does(package: Path) -> None:
    sign = ast.get_docstring(ast.parse((package / "__init__.py").read_text())) or ""
    what, _, never = sign.partition("\n\n")
    assert what.rstrip().endswith(".") and never.rstrip().endswith("."), (
        f"{name_of(package)}: two paragraphs are missing"
    )


@pytest.mark.parametrize("package", PACKAGES, ids=name_of)
def test_a_folder_holds_no_more_modules_than_can_be_taken_in(package: Path) -> None:
    modules = [file for file in package.glob("*.py") if file.name != "__init__.py"]
    assert len(modules) <= MOST_MODULES_IN.get(name_of(package), MOST_MODULES), f"{name_of(package)} needs rooms inside"


def test_only_four_modules_lie_outside_of_a_package() -> None:
    assert {file.stem for file in (CHECKOUT / "appliance").glob("*.py")} == TOP


def test_a_checkout_holds_at_most_a_thousand_files() -> None:
    listed = subprocess.run(["git", "ls-files"], cwd=CHECKOUT, capture_output=True, text=True, check=False)
    assert len(listed.stdout.splitlines()) <= 1000  # none where the checkout was copied without its history


def test_below_the_commands_no_function_imports_another_package() -> None:
    """Of `appliance`. Such an import hides from a reader what a package needs."""
    found = {}
    for file in sorted((CHECKOUT / "appliance").rglob("*.py")):
        own = file.relative_to(CHECKOUT / "appliance").parts[0]
        tops = {
            node.lineno for node in ast.parse(file.read_text()).body if isinstance(node, ast.Import | ast.ImportFrom)
        }
        for line, name in imports(file):
            other = name.removeprefix("appliance.").partition(".")[0]
            if name.startswith("appliance.") and line not in tops and other != own:
                found[own, other] = f"{name_of(file)}:{line}"
    late = {pair: where for pair, where in found.items() if pair[0] not in ("cli.py", "commands", "bench")}
    late = {pair: where for pair, where in late.items() if not is_type_checking(where)}
    assert late.keys() <= LATE, late


def is_type_checking(where: str) -> bool:
    """Whether an import stands under `if TYPE_CHECKING:`, where it only names types."""
    name, line = where.split(":")
    tree = ast.parse((CHECKOUT / name).read_text())
    return any(
        isinstance(node, ast.If)
        and ast.unparse(node.test) == "TYPE_CHECKING"
        and node.lineno < int(line) <= (node.end_lineno or 0)
        for node in tree.body
    )
