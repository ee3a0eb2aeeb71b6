"""Publications of one subscription combined, without a server: rows as the catalog has them."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from penstock.attribute import AttGenerated, Attribute
from penstock.errors import FeatureNotSupported
from penstock.publication.members import Members, Operation
from penstock.publication.relation_sync import (
    RelationSyncEntry,
    columns_without_list,
    publication_tables,
    relation_sync_entry,
)


@dataclass(frozen=True)
class Publication:
    oid: int
    name: str = "p"
    all_tables: bool = False
    insert: bool = True
    update: bool = True
    delete: bool = True
    truncate: bool = True
    via_root: bool = False
    generated_columns: str = "n"


@dataclass(frozen=True)
class Rel:
    publication: int
    relation: int
    columns: tuple[str, ...] | None = None
    row_filter: str | None = None


@dataclass(frozen=True)
class Namespace:
    publication: int
    schema: str


@dataclass(frozen=True)
class Table:
    oid: int
    name: str
    schema: str = "public"
    parent: int | None = None
    partition_key: str | None = None
    identity: tuple[str, ...] | None = ("a",)


COLUMNS = (
    Attribute("a", 23),
    Attribute("b", 25),
    Attribute("g", 23, generated=AttGenerated.STORED, generation="a * 2"),
)
VIRTUAL = Attribute("v", 23, generated=AttGenerated.VIRTUAL, generation="a * 2")
PLAIN = COLUMNS[:2]
T = Table(1, "t")
ROOT = Table(10, "root", partition_key="RANGE (a)")
MIDDLE = Table(11, "middle", parent=10, partition_key="RANGE (a)")
LEAF = Table(12, "leaf", parent=11)
EVERYTHING = frozenset(Operation)


def one(
    publications: list[Publication],
    rels: list[Rel],
    namespaces: list[Namespace] | None = None,
    tables: tuple[Table, ...] = (T,),
    columns: tuple[Attribute, ...] = PLAIN,
) -> RelationSyncEntry:
    members = Members(publications, rels, namespaces or [], tables)
    (table,) = (table for table in tables if table.partition_key is None)
    found = relation_sync_entry(members, table, columns)
    assert found is not None
    return found


def test_one_filter() -> None:
    found = one([Publication(1)], [Rel(1, 1, None, "(a > 5)")])
    assert found.operations == EVERYTHING
    assert found.columns is None
    assert found.target is T
    assert set(found.filters) == {Operation.INSERT, Operation.UPDATE, Operation.DELETE}
    assert len(set(found.filters.values())) == 1


def test_filters_are_joined_by_or_per_action() -> None:
    first = Publication(1, update=False, delete=False)
    second = Publication(2, delete=False)
    found = one([first, second], [Rel(1, 1, None, "(a > 5)"), Rel(2, 1, None, "(a < 2)")])
    assert " OR " in str(found.filters[Operation.INSERT])
    assert " OR " not in str(found.filters[Operation.UPDATE])
    assert found.filters[Operation.DELETE] is None
    assert Operation.DELETE not in found.operations


@pytest.mark.parametrize("kind", ["all tables", "schema", "no filter"])
def test_a_publication_without_filter_lifts_the_others(kind: str) -> None:
    filtered, rels = Publication(1), [Rel(1, 1, None, "(a > 5)")]
    other = Publication(2, all_tables=kind == "all tables", update=False)
    namespaces = [Namespace(2, "public")] if kind == "schema" else []
    rels += [Rel(2, 1)] if kind == "no filter" else []
    found = one([filtered, other], rels, namespaces)
    assert found.filters[Operation.INSERT] is None
    assert found.filters[Operation.UPDATE] is not None


def test_an_unpublished_table_is_left_out() -> None:
    assert relation_sync_entry(Members([Publication(1)], [], [], [T]), T, PLAIN) is None


def test_partitions_are_published_as_themselves_or_as_the_topmost_ancestor() -> None:
    tables = (ROOT, MIDDLE, LEAF)
    rels = [Rel(1, 10), Rel(2, 11, None, "(a = 1)"), Rel(2, 10, None, "(a = 2)")]
    assert one([Publication(1)], rels, tables=tables).target is LEAF
    found = one([Publication(1), Publication(2, via_root=True)], rels, tables=tables)
    assert found.target is ROOT
    assert "'2'" in str(found.filters[Operation.INSERT])
    assert "'1'" not in str(found.filters[Operation.INSERT])
    assert one([Publication(3, all_tables=True, via_root=True)], [], tables=tables).target is ROOT


def test_actions_of_lower_levels_count_and_their_filters_do_not() -> None:
    tables = (ROOT, MIDDLE, LEAF)
    leaf = Publication(1, insert=False, truncate=False)
    root = Publication(2, update=False, delete=False, truncate=False, via_root=True)
    found = one([leaf, root], [Rel(1, 12, None, "(a = 1)"), Rel(2, 10)], tables=tables)
    assert found.operations == {Operation.INSERT, Operation.UPDATE, Operation.DELETE}
    assert found.target is ROOT
    assert set(found.filters.values()) == {None}


def test_column_lists() -> None:
    assert one([Publication(1)], [Rel(1, 1, ("b", "a"))]).columns == ("a", "b")
    assert one([Publication(1)], [Rel(1, 1, ("b",))]).columns == ("b",)
    same = [Rel(1, 1, ("b",)), Rel(2, 1, ("b",))]
    assert one([Publication(1), Publication(2)], same).columns == ("b",)
    with pytest.raises(FeatureNotSupported, match=r'column lists for table "public\.t" in diff'):
        one([Publication(1), Publication(2)], [Rel(1, 1, ("a",)), Rel(2, 1)])
    assert one([Publication(1), Publication(2)], [Rel(1, 1, ("a", "b")), Rel(2, 1)])


def test_generated_columns() -> None:
    assert one([Publication(1)], [Rel(1, 1)], columns=COLUMNS).columns == ("a", "b")
    stored = Publication(2, generated_columns="s")
    assert one([stored], [Rel(2, 1)], columns=COLUMNS).columns is None
    with pytest.raises(FeatureNotSupported, match="different values of publish_generated_columns"):
        one([Publication(1), stored], [Rel(1, 1), Rel(2, 1)], columns=COLUMNS)
    listed = one([Publication(1)], [Rel(1, 1, ("a", "g"))], columns=COLUMNS)
    assert listed.columns == ("a", "g")


def test_virtual_columns_are_not_published_and_filters_are_over_what_they_are_made_of() -> None:
    stored = Publication(1, generated_columns="s")
    columns = (*COLUMNS, VIRTUAL)
    assert one([stored], [Rel(1, 1)], columns=columns).columns == ("a", "b", "g")
    assert columns_without_list(columns, stored=True) == ("a", "b", "g")
    found = one([stored], [Rel(1, 1, row_filter="v > 10")], columns=columns)
    assert '"a"' in str(found.filters[Operation.INSERT])


def test_what_a_subscriber_copies() -> None:
    tables = (T, ROOT, MIDDLE, LEAF)
    rels = [Rel(1, 10, None, "(a = 1)"), Rel(1, 12), Rel(1, 1, ("b",))]
    schema = [Namespace(1, "public")]

    def copied(
        publication: Publication, rels: list[Rel], namespaces: list[Namespace], *unread: int
    ) -> list[int]:
        members = Members([publication], rels, namespaces, tables)
        return [table.oid for table in publication_tables(members, publication, unread)]

    rooted, leaves = Publication(1, via_root=True), Publication(1)
    assert copied(rooted, rels, []) == [1, 10]
    assert copied(leaves, rels, []) == [1, 12]
    assert copied(rooted, [Rel(1, 11)], []) == [11]
    assert copied(rooted, [], schema) == [1, 10]
    assert copied(leaves, [], schema) == [1, 12]
    every = Publication(1, all_tables=True)
    assert copied(every, [], []) == [1, 12]
    assert copied(Publication(1, all_tables=True, via_root=True), [], []) == [1, 10]
    assert copied(every, [], [], 12) == copied(leaves, [], schema, 12) == [1]
    assert copied(leaves, [Rel(1, 10)], schema, 1, 12) == [12]
