"""What every file of this checkout keeps to, where neither the linter nor the import contracts look."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

CHECKOUT = Path(__file__).parents[1]


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
