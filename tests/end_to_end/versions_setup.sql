-- What the tests of all versions replicate: every type of this issue, any kind of table.
CREATE TYPE mood AS ENUM ('sad', 'happy');
CREATE TABLE items (
    id integer NOT NULL, name varchar(40), code char(4), price numeric(10,2) NOT NULL,
    weight real,
    ratio double precision, active boolean, tags text[], counts integer[], amounts numeric(8,3)[],
    made date, at timestamptz, local timestamp, uid uuid, doc jsonb, plain json, raw bytea,
    big bigint, small smallint, span interval, addr inet, mood mood, any_number numeric,
    secret text, PRIMARY KEY (id, price));
CREATE TABLE parts (a integer, b text, v text, PRIMARY KEY (a, b)) PARTITION BY RANGE (a);
CREATE TABLE parts_low PARTITION OF parts FOR VALUES FROM (0) TO (100);
CREATE TABLE parts_high PARTITION OF parts FOR VALUES FROM (100) TO (1000);
CREATE TABLE empty (id uuid PRIMARY KEY, n integer);
CREATE TABLE keyless (a integer, b text);
ALTER TABLE keyless REPLICA IDENTITY FULL;
INSERT INTO items SELECT i,
    CASE WHEN i % 5 > 0 THEN 'name ' || i END, 'c' || i % 10, i * 1.25, i + 0.5, i / 8.0, i % 2 = 0,
    CASE WHEN i % 4 > 0 THEN ARRAY['a,b', NULL, '"x"', 'é' || i] ELSE '{}' END, ARRAY[i, NULL, -i],
    ARRAY[i * 1.5], date '2020-01-01' + i, timestamptz '2021-03-04 05:06:07.89+02' + i * interval '1 s',
    timestamp '1999-12-31 23:59:59.999999' - i * interval '1 day', gen_random_uuid(),
    jsonb_build_object('i', i, 'b', 'a', 'n', NULL), '{"k":  1, "k": 2}', decode(md5(i::text), 'hex'),
    i::bigint << 40, -i, i * interval '1 day 2 hours', ('10.0.0.' || i % 250)::inet,
    (ARRAY['sad', 'happy'])[1 + i % 2]::mood, i / 3.0::numeric, 'secret'
    FROM generate_series(1, 1000) i;
INSERT INTO parts SELECT i, 'b' || i, repeat('v', i) FROM generate_series(1, 300) i;
INSERT INTO keyless SELECT i % 5, 'x' FROM generate_series(1, 100) i;
-- All types, no key, equal rows, large values in old tuples too.
CREATE TABLE whole (LIKE items);
ALTER TABLE whole REPLICA IDENTITY FULL;
ALTER TABLE whole ALTER COLUMN secret SET STORAGE EXTERNAL;
INSERT INTO whole SELECT * FROM items WHERE id <= 60;
INSERT INTO whole SELECT * FROM items WHERE id <= 30;
UPDATE whole SET secret = repeat('large ', 1000) WHERE id % 2 = 0;
