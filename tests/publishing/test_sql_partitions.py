"""Changes of partitioned tables by psql: rows find their partition as in PostgreSQL.

Each script runs on a node and on a real server, and both print the same, errors among it.
"""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from faults.heavy import in_make_faults, part_of_make_faults
from penstock.executor.modify import RowMoves
from penstock.pipeline.write_frame import write_frame
from publishing.psql_pair import Pair

WRITE = "penstock.executor.modify.write_frame"

pytestmark = [pytest.mark.postgres, pytest.mark.spark, pytest.mark.slow]


def test_ranges_lists_and_levels(pair: Pair) -> None:
    pair.both(
        r"""
CREATE TABLE m (day date, kind text, n int, PRIMARY KEY (day, kind)) PARTITION BY RANGE (day);
SELECT * FROM m;
INSERT INTO m VALUES ('2024-01-01', 'a', 1);
CREATE TABLE m_23 PARTITION OF m FOR VALUES FROM (MINVALUE) TO ('2024-01-01');
CREATE TABLE m_24 PARTITION OF m FOR VALUES FROM ('2024-01-01') TO ('2025-01-01')
  PARTITION BY LIST (kind);
CREATE TABLE m_24_ab PARTITION OF m_24 FOR VALUES IN ('a', 'b');
CREATE TABLE m_24_q PARTITION OF m_24 FOR VALUES IN ('it''s', 'q');
INSERT INTO m VALUES ('2023-12-31', 'x', 1), ('2024-01-01', 'a', 2), ('2024-12-31', 'it''s', 3);
INSERT INTO m (kind, n, day) SELECT 'b', n + 10, '2024-02-03'::date FROM m WHERE n = 1;
SELECT * FROM m ORDER BY n;
SELECT * FROM m_23;
SELECT * FROM m_24 ORDER BY n;
SELECT * FROM m_24_ab ORDER BY n;
INSERT INTO m VALUES ('2023-06-01', 'y', 5), ('2025-01-01', 'x', 6);
INSERT INTO m VALUES ('2024-06-01', 'c', 5);
INSERT INTO m_24 VALUES ('2023-06-01', 'a', 5);
INSERT INTO m_24_ab VALUES ('2024-06-01', 'q', 5);
INSERT INTO m_24_ab VALUES ('2024-06-01', 'a', 5);
SELECT count(*) FROM m;
UPDATE m SET n = n + 100 WHERE kind IN ('a', 'x');
UPDATE m_24_ab SET kind = 'q' WHERE n = 5;
UPDATE m SET kind = 'b' WHERE kind = 'a' AND n = 5;
SELECT sum(n), max(kind) FROM m;
DELETE FROM m WHERE n > 100;
SELECT * FROM m ORDER BY n;
TRUNCATE m_24;
SELECT * FROM m ORDER BY n;
\d+ m
\d+ m_24
\d m_24_ab
"""
    )


def test_defaults_nulls_and_numbers(pair: Pair) -> None:
    pair.both(
        r"""
CREATE TABLE r (a int, b numeric(6,2), c text) PARTITION BY RANGE (a, b);
CREATE TABLE r1 PARTITION OF r FOR VALUES FROM (1, 0) TO (1, 10.5);
CREATE TABLE r2 PARTITION OF r FOR VALUES FROM (1, 10.5) TO (5, MINVALUE);
CREATE TABLE r3 PARTITION OF r FOR VALUES FROM (10, MINVALUE) TO (MAXVALUE, MAXVALUE);
INSERT INTO r VALUES (1, 10.49, 'r1'), (1, 10.5, 'r2'), (4, 999, 'r2'), (10, -5, 'r3');
INSERT INTO r VALUES (5, 1, 'nowhere');
INSERT INTO r VALUES (NULL, 1, 'nowhere');
INSERT INTO r VALUES (0, NULL, 'nowhere');
CREATE TABLE rd PARTITION OF r DEFAULT;
INSERT INTO r VALUES (5, 1, 'rd'), (NULL, 1, 'rd'), (0, NULL, 'rd');
INSERT INTO rd VALUES (4, 1, 'r2');
INSERT INTO rd (c) VALUES ('nulls');
SELECT * FROM r1;
SELECT * FROM r2 ORDER BY a, b;
SELECT * FROM r3;
SELECT * FROM rd ORDER BY a, b, c;
CREATE TABLE l (a int, b text) PARTITION BY LIST (a);
CREATE TABLE l1 PARTITION OF l FOR VALUES IN (1, NULL, -3);
CREATE TABLE ld PARTITION OF l DEFAULT;
INSERT INTO l VALUES (1, 'l1'), (-3, 'l1'), (NULL, 'l1'), (2, 'ld');
INSERT INTO ld VALUES (NULL, repeat('long', 30));
INSERT INTO l1 VALUES (7, NULL);
CREATE TABLE l2 PARTITION OF l FOR VALUES IN (2, 3);
CREATE TABLE l3 PARTITION OF l FOR VALUES IN (3);
CREATE TABLE l2 (a int, b text);
ALTER TABLE l ATTACH PARTITION l2 FOR VALUES IN (2);
CREATE TABLE n (a int, b int) PARTITION BY LIST (a);
CREATE TABLE nd PARTITION OF n DEFAULT PARTITION BY LIST (b);
CREATE TABLE nd1 PARTITION OF nd DEFAULT;
INSERT INTO n VALUES (NULL, 1);
CREATE TABLE n1 PARTITION OF n FOR VALUES IN (NULL);
CREATE TABLE n1 (a int, b int);
ALTER TABLE n ATTACH PARTITION n1 FOR VALUES IN (1, NULL);
ALTER TABLE n ATTACH PARTITION n1 FOR VALUES IN (2);
CREATE TABLE r4 PARTITION OF r FOR VALUES FROM (5, 1) TO (5, 2);
CREATE TABLE r4 PARTITION OF r FOR VALUES FROM (5, 2) TO (10, MINVALUE);
SELECT * FROM l1 ORDER BY a;
SELECT * FROM ld;
"""
    )


def test_update_moves_rows(pair: Pair) -> None:
    """As far as the named table reaches, and not at all where one row belongs nowhere."""
    pair.both(
        r"""
CREATE TABLE u (a int, k text, b int, PRIMARY KEY (a, k)) PARTITION BY RANGE (a);
CREATE TABLE u1 PARTITION OF u FOR VALUES FROM (0) TO (10);
CREATE TABLE u2 PARTITION OF u FOR VALUES FROM (10) TO (20) PARTITION BY LIST (k);
CREATE TABLE u2_x PARTITION OF u2 FOR VALUES IN ('x');
CREATE TABLE u2_y PARTITION OF u2 FOR VALUES IN ('y', 'z');
INSERT INTO u VALUES (1, 'x', 0), (2, 'y', NULL), (3, 'q', 2), (12, 'x', 3), (13, 'y', 4);
UPDATE u SET a = a + 10, b = 7 WHERE a < 3;
SELECT * FROM u1;
SELECT * FROM u2_x ORDER BY a;
SELECT * FROM u2_y ORDER BY a;
UPDATE u SET a = 15 WHERE k = 'q';
UPDATE u SET a = a + 100 WHERE k = 'x' AND b = 7;
UPDATE u2 SET a = 5 WHERE a = 13;
UPDATE u2_x SET k = 'y', b = NULL WHERE a = 12;
UPDATE u2_x SET a = 5 WHERE a = 12;
UPDATE u SET a = a - 10, b = 10 / (b - 7) WHERE a > 10;
SELECT * FROM u ORDER BY a, k;
UPDATE u2 SET k = CASE k WHEN 'x' THEN 'z' ELSE 'x' END, a = 30 - a;
UPDATE u SET b = 0, a = a WHERE k = 'q';
UPDATE u SET a = 9, k = 'none' WHERE b = 1000;
SELECT * FROM u1;
SELECT * FROM u2_x ORDER BY a;
SELECT * FROM u2_y ORDER BY a;
DELETE FROM u2_y;
UPDATE u SET a = 0 - a + 20, k = 'z' WHERE k IN ('q', 'x');
SELECT * FROM u ORDER BY a, k;
"""
    )


@part_of_make_faults
def test_no_row_moves_to_a_table_that_files_would_damage(pair: Pair) -> None:
    lake = pair.lake
    lake.execute(
        "CREATE TABLE f (a int, b int) PARTITION BY RANGE (a)",
        "CREATE TABLE f1 PARTITION OF f FOR VALUES FROM (0) TO (10)",
        "CREATE TABLE f2 PARTITION OF f FOR VALUES FROM (10) TO (20)",
        "INSERT INTO f VALUES (1, 0), (15, 1)",
    )
    lake.node.spark.sql(
        f"ALTER TABLE delta.`{lake.node.folder}/warehouse/public/f2`"
        " SET TBLPROPERTIES ('delta.enableDeletionVectors' = 'false')"
    )
    with pytest.raises(Exception, match="moving a row to another partition") as caught:
        lake.execute("UPDATE f SET a = a + 10 WHERE a < 10")
    assert caught.value.sqlstate == "0A000"  # type: ignore[attr-defined]
    assert "f2" in caught.value.diag.message_detail  # type: ignore[attr-defined]
    lake.execute("UPDATE f SET a = a + 2")
    assert lake.rows("SELECT a, b FROM f ORDER BY a") == [(3, 0), (17, 1)]


@pytest.mark.usefixtures("by_spark")
@part_of_make_faults
def test_a_row_that_comes_after_an_update_has_looked(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stays what it was where it would have to move, and never lies in a wrong partition."""
    lake = pair.lake
    lake.execute(
        "CREATE TABLE late (a int, b int) PARTITION BY RANGE (a)",
        "CREATE TABLE late1 PARTITION OF late FOR VALUES FROM (0) TO (10)",
        "CREATE TABLE late2 PARTITION OF late FOR VALUES FROM (10) TO (20)",
        "INSERT INTO late VALUES (1, 0), (2, 5)",
    )
    looked = RowMoves.run

    def run(*arguments: Any, **options: Any) -> int | None:
        found = looked(*arguments, **options)
        monkeypatch.setattr(RowMoves, "run", looked)
        with lake.connect() as other:
            other.execute("INSERT INTO late VALUES (8, 5), (3, 5), (9, 0)")
        return found

    monkeypatch.setattr(RowMoves, "run", run)
    lake.execute("UPDATE late SET a = a + 10 / b WHERE b > 0")
    assert sorted(lake.rows("SELECT a, b FROM late1")) == [(1, 0), (4, 5), (5, 5), (8, 5), (9, 0)]
    assert lake.rows("SELECT a, b FROM late2") == []


@pytest.mark.usefixtures("by_spark")
@pytest.mark.parametrize(
    ("other", "refused", "rows"),
    [
        in_make_faults("INSERT INTO race VALUES (16, 5)", False, {"race1": [4], "race2": [11, 16]}),
        ("DELETE FROM race WHERE a = 15", True, {"race1": [1], "race2": []}),
    ],
    ids=["insert", "delete"],
)
def test_others_commit_while_rows_move(
    pair: Pair,
    monkeypatch: pytest.MonkeyPatch,
    other: str,
    refused: bool,
    rows: dict[str, list[int]],
) -> None:
    """Rows that came meanwhile stay; where one that moves is gone, all stay where they were."""
    lake = pair.lake
    lake.execute(
        "DROP TABLE IF EXISTS race",
        "CREATE TABLE race (a int, b int) PARTITION BY RANGE (a)",
        "CREATE TABLE race1 PARTITION OF race FOR VALUES FROM (0) TO (10)",
        "CREATE TABLE race2 PARTITION OF race FOR VALUES FROM (10) TO (20)",
        "INSERT INTO race VALUES (1, 0), (15, 1)",
    )

    def written(*arguments: Any) -> Any:
        monkeypatch.setattr(WRITE, write_frame)
        with lake.connect() as session:
            session.execute(other)
        return write_frame(*arguments)

    monkeypatch.setattr(WRITE, written)
    update = "UPDATE race SET a = CASE a WHEN 1 THEN 11 ELSE 4 END"
    if refused:
        with pytest.raises(psycopg.errors.SerializationFailure):
            lake.execute(update)
    else:
        lake.execute(update)
    assert {name: sorted(a for (a,) in lake.rows(f"SELECT a FROM {name}")) for name in rows} == rows


def test_tables_with_rows_are_attached(pair: Pair) -> None:
    """To a level in the middle, as a default, with partitions of their own; those with rows that
    do not belong there are not."""
    pair.both(
        r"""
CREATE TABLE att (a int, b text, c int) PARTITION BY RANGE (a);
CREATE TABLE att1 PARTITION OF att FOR VALUES FROM (0) TO (10) PARTITION BY LIST (b);
CREATE TABLE att1_x PARTITION OF att1 FOR VALUES IN ('x');
CREATE TABLE att_other (c int, b text, a int);
INSERT INTO att_other VALUES (1, 'y', 1), (2, 'y', 9);
ALTER TABLE att1 ATTACH PARTITION att_other FOR VALUES IN ('z');
ALTER TABLE att1 ATTACH PARTITION att_other FOR VALUES IN ('y');
SELECT * FROM att ORDER BY c;
ALTER TABLE att1 DETACH PARTITION att_other;
INSERT INTO att_other VALUES (3, 'y', 10);
ALTER TABLE att1 ATTACH PARTITION att_other FOR VALUES IN ('y');
DELETE FROM att_other WHERE a = 10;
INSERT INTO att_other VALUES (4, NULL, 3);
ALTER TABLE att1 ATTACH PARTITION att_other DEFAULT;
SELECT * FROM att ORDER BY c;
ALTER TABLE att1 DETACH PARTITION att_other;
INSERT INTO att_other VALUES (5, 'x', 3);
ALTER TABLE att1 ATTACH PARTITION att_other DEFAULT;
CREATE TABLE att_t (a int, b text, c int) PARTITION BY RANGE (a);
CREATE TABLE att_t20 PARTITION OF att_t FOR VALUES FROM (20) TO (25);
CREATE TABLE att_t25 PARTITION OF att_t FOR VALUES FROM (25) TO (40);
INSERT INTO att_t VALUES (20, 'p', 20), (31, 'q', 31);
ALTER TABLE att ATTACH PARTITION att_t FOR VALUES FROM (20) TO (30);
DELETE FROM att_t WHERE a = 31;
ALTER TABLE att ATTACH PARTITION att_t FOR VALUES FROM (20) TO (30);
ALTER TABLE att_t ATTACH PARTITION att FOR VALUES FROM (50) TO (60);
INSERT INTO att VALUES (29, 'r', 29);
INSERT INTO att_t VALUES (31, 'r', 29);
SELECT * FROM att ORDER BY c;
SELECT * FROM att_t25;
"""
    )


@pytest.mark.parametrize("way", ["by_files", in_make_faults("by_spark")])
def test_bounds_of_other_types(pair: Pair, way: str, request: pytest.FixtureRequest) -> None:
    """Both ways of writing and a server agree on bytes, times without end, uuids in capitals, words
    for booleans and hashes, whatever a DEFAULT partition would take in silence."""
    if way == "by_spark":
        request.getfixturevalue(way)
    pair.both(
        r"""
CREATE TABLE ob (a bytea, d date, n int) PARTITION BY RANGE (a, d);
CREATE TABLE ob1 PARTITION OF ob FOR VALUES FROM ('\x00', '-infinity') TO ('\x41', 'infinity');
CREATE TABLE ob2 PARTITION OF ob FOR VALUES FROM ('B', MINVALUE) TO ('\xff', MINVALUE)
  PARTITION BY LIST (a);
CREATE TABLE ob2_b PARTITION OF ob2 FOR VALUES IN ('\x42', 'C');
CREATE TABLE obd PARTITION OF ob DEFAULT;
INSERT INTO ob VALUES ('\x00', '2024-01-01', 1), ('A', '9999-12-31', 2), ('\x4100', NULL, 3),
  ('\x42', '2024-01-01', 4), ('C', '2024-01-01', 5), (NULL, '2024-01-01', 6);
INSERT INTO ob2 VALUES ('D', '2024-01-01', 7);
INSERT INTO ob2 VALUES ('A', '2024-01-01', 8);
INSERT INTO ob2_b VALUES ('D', '2024-01-01', 7);
INSERT INTO obd VALUES ('C', '2024-01-01', 8);
SELECT n FROM ob1 ORDER BY n;
SELECT n FROM ob2_b ORDER BY n;
SELECT n FROM obd ORDER BY n;
UPDATE ob SET a = '\x43' WHERE n = 1;
UPDATE ob2 SET a = 'D' WHERE n = 1;
UPDATE ob2_b SET a = '\x00' WHERE n = 1;
UPDATE ob SET a = '\x0a' WHERE n IN (1, 4, 6);
SELECT n FROM ob1 ORDER BY n;
SELECT n FROM ob2_b ORDER BY n;
SELECT n FROM obd ORDER BY n;
CREATE TABLE oh (a uuid, b boolean, c text) PARTITION BY LIST (b);
CREATE TABLE oh1 PARTITION OF oh FOR VALUES IN ('yes', NULL) PARTITION BY HASH (a, c);
CREATE TABLE oh1_0 PARTITION OF oh1 FOR VALUES WITH (MODULUS 3, REMAINDER 0);
CREATE TABLE oh1_1 PARTITION OF oh1 FOR VALUES WITH (MODULUS 3, REMAINDER 1);
CREATE TABLE oh2 PARTITION OF oh FOR VALUES IN ('off') PARTITION BY RANGE (a);
CREATE TABLE oh2_1 PARTITION OF oh2
  FOR VALUES FROM (MINVALUE) TO ('A0000000-0000-4000-8000-00000000000B');
INSERT INTO oh VALUES ('a0000000-0000-4000-8000-00000000000b', false, 'x');
INSERT INTO oh VALUES ('a0000000-0000-4000-8000-00000000000a', false, 'x');
INSERT INTO oh VALUES (NULL, true, 'a');
INSERT INTO oh VALUES (NULL, NULL, 'b');
INSERT INTO oh1 VALUES (NULL, true, 'c');
INSERT INTO oh1 VALUES ('a0000000-0000-4000-8000-00000000000a', true, 'd');
INSERT INTO oh1_0 VALUES (NULL, true, 'e');
SELECT * FROM oh1_0 ORDER BY c;
SELECT * FROM oh1_1 ORDER BY c;
SELECT * FROM oh2_1;
UPDATE oh SET c = c || c WHERE c = 'a';
UPDATE oh SET c = c || c WHERE c = 'b';
UPDATE oh SET b = NOT b, c = 'd' WHERE a IS NOT NULL;
SELECT * FROM oh1_0 ORDER BY c;
SELECT * FROM oh1_1 ORDER BY c;
SELECT * FROM oh2_1;
DROP TABLE ob, oh;
"""
    )


def test_the_first_row_without_a_partition_is_reported(pair: Pair) -> None:
    """In the order of the rows, whichever level refuses it: none of the table's, or its own."""
    pair.both(
        r"""
CREATE TABLE fo (a int, b text) PARTITION BY RANGE (a);
CREATE TABLE fo1 PARTITION OF fo FOR VALUES FROM (0) TO (10) PARTITION BY LIST (b);
CREATE TABLE fo1_x PARTITION OF fo1 FOR VALUES IN ('x');
INSERT INTO fo VALUES (1, 'x'), (20, 'x'), (1, 'y');
INSERT INTO fo VALUES (1, 'x'), (1, 'y'), (20, 'x');
INSERT INTO fo1 VALUES (1, 'x'), (20, 'x'), (1, 'y');
INSERT INTO fo1 VALUES (1, 'x'), (1, 'y'), (20, 'x');
SELECT * FROM fo;
"""
    )
