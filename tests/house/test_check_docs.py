"""tools/check_docs.py finds what stands twice, and nothing else."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]
_TABLE = "| a | b |\n|---|---|\n| `x` | {} |\n| `y` | 2 |\n"
_LIST = "- one\n- two, which goes on\n  in a second line\n- three\n- four\n"
_SENTENCE = "An example of a sentence that has ten words, or more."
_FIGURE = "One of them takes 20 ms."


@pytest.fixture(scope="module")
def check_docs() -> ModuleType:
    spec = importlib.util.spec_from_file_location("check_docs", ROOT / "tools" / "check_docs.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (_TABLE.format(1), f"Text.\n\n{_TABLE.format(3)}"),
        (_LIST, _LIST.replace("- one\n", "") + "- one\n"),
        (_FIGURE, f"Before.\n{_FIGURE} Behind."),
        (_SENTENCE, "## Heading\n" + _SENTENCE.replace("sentence that", "sentence\nthat")),
        (f"- {_SENTENCE}", f"| a |\n|---|\n| {_SENTENCE} |"),
        ("", "After `delay` (200 ms) it ends."),
    ],
)
def test_what_stands_twice(check_docs: ModuleType, one: str, other: str) -> None:
    pages = {"docs/parameters.md": f"| `delay` | `1` |\n\n{one}", "docs/other.md": other}
    assert len(check_docs.repeated(pages)) == 1


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (_TABLE.format(1), _TABLE.format(1).replace("`y`", "`z`")),
        (_LIST, _LIST.replace("one", "another")),
        (f"```\n{_SENTENCE}\n```", f"```\n{_SENTENCE}\n```"),
        (f"<!-- table: t -->\n{_TABLE}<!-- end of table -->\n", _TABLE),
        ("It takes 20 ms.", "It takes 20 ms."),
        ("", "After `other` (200 ms) it ends, or `delay` (where it is 200 ms)."),
    ],
)
def test_what_does_not(check_docs: ModuleType, one: str, other: str) -> None:
    pages = {"docs/parameters.md": f"| `delay` | `1` |\n\n{one}", "docs/other.md": other}
    assert check_docs.repeated(pages) == []
