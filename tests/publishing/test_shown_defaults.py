"""psql and information_schema show defaults of columns of a node as those of a server."""

from __future__ import annotations

import pytest

from publishing.psql_pair import Pair

pytestmark = [pytest.mark.postgres, pytest.mark.spark]

_SCRIPT = r"""
CREATE SCHEMA shown;
CREATE TYPE shown.mood AS ENUM ('ok', 'o''clock');
CREATE TABLE shown.constants (i int DEFAULT 5, n int DEFAULT -5, big bigint DEFAULT 3000000000,
    price numeric(8,2) DEFAULT 0, f float8 DEFAULT 1.5, b boolean DEFAULT true,
    name text DEFAULT 'it''s', code varchar(3) DEFAULT 'abc', c char(4) DEFAULT 'a',
    d date DEFAULT '2024-1-1', tags text[] DEFAULT '{}', j jsonb DEFAULT '{"a":1}',
    m shown.mood DEFAULT 'o''clock', nothing int DEFAULT NULL);
CREATE TABLE shown.times (id serial, a timestamptz DEFAULT now(), b date DEFAULT CURRENT_DATE,
    c timestamp DEFAULT LOCALTIMESTAMP, d timestamptz DEFAULT CURRENT_TIMESTAMP,
    e timestamp DEFAULT now(), g int GENERATED ALWAYS AS (id + 1) STORED);
CREATE TABLE shown.parted (id int, name text DEFAULT 'x') PARTITION BY LIST (id);
CREATE TABLE shown.part PARTITION OF shown.parted FOR VALUES IN (1);
\d shown.constants
\d+ shown.times
\d shown.parted
\d shown.part
SET search_path = shown;
\d constants
RESET search_path;
SELECT table_name, column_name, column_default, is_nullable FROM information_schema.columns
    WHERE table_schema = 'shown' ORDER BY 1, ordinal_position;
SELECT attname, atthasdef FROM pg_attribute WHERE attrelid = 'shown.constants'::regclass
    AND attnum > 0 ORDER BY attnum;
INSERT INTO shown.constants (i) VALUES (1);
SELECT * FROM shown.constants;
\dx
\dL
\dd
\dn+ public
"""


def test_psql_shows_the_same(pair: Pair) -> None:
    pair.server.execute("DROP EXTENSION plpgsql")  # a node has no languages
    pair.both(_SCRIPT)
