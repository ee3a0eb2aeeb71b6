"""Every command, statement and Python block of README and docs runs, against a real server."""

from __future__ import annotations

import itertools
import shutil
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from docs.blocks import Block, blocks, pages
from docs.world import FEED, GUIDE, World, reports_server, shop_server
from faults.heavy import in_make_faults, part_of_make_faults
from fix_object_store import ObjectStore
from penstock import Node
from penstock.embedded import EmbeddedPostgres

OBJECT_STORES = "docs/object-stores.md"
_OWN_TESTS = (GUIDE, FEED, OBJECT_STORES)
_LONG = ("docs/reading-at-a-cut.md", "docs/history.md", "docs/state-store.md")
_READING = "6. Reading"
"""Section of the guide in front of which a node follows the shop."""


@pytest.mark.parametrize("page", pages())
def test_every_block_says_what_it_is_for(page: str) -> None:
    unknown = [f"{block}: {block.kind!r}" for block in blocks(page) if not block.known]
    assert not unknown, "unknown marks (tests/docs/blocks.py lists them)"


def _pages_that_run() -> list[str]:
    return [page for page in pages() if any(block.runs for block in blocks(page))]


@pytest.fixture(scope="module")
def followed_shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """A node that follows the guide's shop: where the other pages begin, and the guide goes on."""
    folder = tmp_path_factory.mktemp("docs")
    with shop_server() as server, World(folder, server) as made:
        made.run(_before(blocks(GUIDE), _READING))
        yield made


@pytest.mark.skipif(shutil.which("sqlite3") is None, reason="the page's program is not here")
def test_a_backup_of_the_state_stays_private(tmp_path: Path) -> None:
    """The state may hold passwords, and the user's umask lets others read new files."""
    away, back = [block.text for block in blocks("docs/operations.md") if "-backup" in block.text]
    state, backup = tmp_path / "node" / "state.db", tmp_path / "state-backup.sqlite"
    Node.init(tmp_path / "node").close()
    backup.touch(0o644)  # of an earlier command
    for commands, made in ((away, backup), (back, state)):
        subprocess.run(["bash", "-ec", f"umask 022; {commands}"], cwd=tmp_path, check=True)
        assert stat.S_IMODE(made.stat().st_mode) == 0o600
    with Node(tmp_path / "node") as node:
        assert node.status() == []


@pytest.mark.postgres
@pytest.mark.spark
@pytest.mark.slow
@part_of_make_faults
def test_feed(tmp_path: Path) -> None:
    with reports_server() as server, World(tmp_path, server) as world:
        world.run(blocks(FEED))
        with_slots = "SELECT count(*) FROM pg_subscription"
        assert server.psql(with_slots) == "0", "the page ends with nothing left"


@pytest.mark.postgres
@pytest.mark.spark
@pytest.mark.slow
@part_of_make_faults
def test_object_stores(followed_shop: World, s3: ObjectStore) -> None:
    followed_shop.names = {"my-lake": s3.bucket()}
    # Its sessions are for its own store.
    followed_shop.end_python()
    followed_shop.run(blocks(OBJECT_STORES))
    followed_shop.end_python()


@pytest.mark.postgres
@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.parametrize(
    "page",
    [
        in_make_faults(page) if page in _LONG else page
        for page in _pages_that_run()
        if page not in _OWN_TESTS
    ],
)
def test_page(page: str, followed_shop: World) -> None:
    followed_shop.run(blocks(page))
    followed_shop.new_page()


@pytest.mark.postgres
@pytest.mark.spark
@pytest.mark.slow
def test_guide(followed_shop: World) -> None:
    """The last one: it ends what the others follow."""
    guide = blocks(GUIDE)
    followed_shop.run(guide[len(_before(guide, _READING)) :])
    assert _slots(followed_shop.server) == "", "the guide ends with nothing left on the publisher"


def _before(found: list[Block], heading: str) -> list[Block]:
    part = list(itertools.takewhile(lambda block: block.heading != heading, found))
    assert len(part) < len(found), f"no section {heading!r}"
    return part


def _slots(server: EmbeddedPostgres) -> str:
    return server.psql("SELECT slot_name FROM pg_replication_slots")
