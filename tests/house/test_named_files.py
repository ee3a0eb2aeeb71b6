"""Files and modules that the pages on the house name are there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = ("docs/architecture.md", "docs/rules.md", "CONTRIBUTING.md")
_FILE = re.compile(r"`([\w./]+\.py)`")
_MODULE = re.compile(
    r"(?<![\w./])((?:backend|commands|executor|lakehouse|pg_catalog|pgoutput|pipeline|sql|"
    r"subscription|walsender)(?:\.[a-z_]+)+)(?![\w*.])"
)


@pytest.mark.parametrize("page", PAGES)
def test_named_files_are_there(page: str) -> None:
    folders = ("src", "tests", "tools", "bench", "examples")
    known = [
        f"/{path.relative_to(ROOT)}" for name in folders for path in (ROOT / name).rglob("*.py")
    ]
    named = set(_FILE.findall((ROOT / page).read_text("utf-8")))
    assert named
    assert not [name for name in named if not any(path.endswith(f"/{name}") for path in known)]


def test_modules_of_the_drawings_are_there() -> None:
    package = ROOT / "src" / "penstock"
    named = set(_MODULE.findall((ROOT / "docs/architecture.md").read_text("utf-8")))
    assert named
    assert not [
        name
        for name in named
        if not (path := package / name.replace(".", "/")).is_dir()
        and not path.with_suffix(".py").exists()
    ]
