"""House rules that no linter knows: docstrings, sizes, imports on top, the public surface."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = sorted((ROOT / "src" / "penstock").rglob("*.py"))
MODULES = [pytest.param(path, id=str(path.relative_to(ROOT / "src"))) for path in SOURCES]

LONGEST_FUNCTION = 60
FORBIDDEN_NAMES = {"utils", "util", "helpers", "helper", "common", "misc"}


def functions(tree: ast.Module) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


@pytest.mark.parametrize("path", MODULES)
def test_a_module_keeps_the_rules(path: Path) -> None:
    text = path.read_text("utf-8")
    tree = ast.parse(text)
    assert ast.get_docstring(tree), "every module says what comes in, what goes out"
    assert path.stem not in FORBIDDEN_NAMES, "a name says what is inside"
    for function in functions(tree):
        length = (function.end_lineno or function.lineno) - function.lineno + 1
        assert length <= LONGEST_FUNCTION, f"{function.name} has {length} lines"
        inside = [ast.unparse(n) for n in ast.walk(function) if hides_a_cycle(n)]
        assert not inside, f"{function.name} imports"


def hides_a_cycle(node: ast.AST) -> bool:
    """An import of ours inside a function; another's may wait there for its cost (PLC0415)."""
    if isinstance(node, ast.ImportFrom):
        return node.level > 0 or (node.module or "").split(".")[0] == "penstock"
    return isinstance(node, ast.Import) and any(
        alias.name.split(".")[0] == "penstock" for alias in node.names
    )


def test_the_package_has_no_surprising_top_level_names() -> None:
    """Rooms are folders; single files are the values that everybody knows."""
    files = {path.stem for path in (ROOT / "src" / "penstock").glob("*.py")}
    assert files >= {"errors", "lsn", "relation", "failpoint"}
    rooms = {p.name for p in (ROOT / "src" / "penstock").iterdir() if p.is_dir()} - {"__pycache__"}
    assert all((ROOT / "src" / "penstock" / room / "__init__.py").is_file() for room in rooms)


def test_there_is_one_record_of_a_column() -> None:
    """Others hold an attribute, and add what is their own."""
    measure = [sys.executable, str(ROOT / "tools" / "measure_house.py"), str(ROOT)]
    done = subprocess.run(
        [*measure, "--list", "records of a column"], capture_output=True, text=True, check=True
    )
    (found,) = done.stdout.splitlines()
    assert found.startswith("penstock.attribute:") and found.endswith("Attribute")


def test_the_public_surface() -> None:
    """``import penstock`` gives Node and the errors' root, and starts neither Spark nor DuckDB."""
    program = (
        "import sys, penstock\n"
        "print(sorted(n for n in dir(penstock) if n in penstock.__all__))\n"
        "print([m for m in ('pyspark', 'duckdb', 'sqlalchemy') if m in sys.modules])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    names, heavy = done.stdout.splitlines()
    assert "Node" in names
    assert heavy == "[]"
