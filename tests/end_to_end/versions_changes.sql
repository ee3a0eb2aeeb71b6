-- Changes after the snapshot: across the row filter (id % 3 <> 0 AND price <> 13), of keys, large, in one
-- transaction with TRUNCATE.
UPDATE items SET price = 13 WHERE id % 10 = 0;
UPDATE items SET price = 14 WHERE price = 13 AND id % 20 = 0;
UPDATE items SET id = id + 10000 WHERE id BETWEEN 100 AND 160;
UPDATE items SET name = NULL, tags = NULL, raw = '\x00ff', doc = '[1, 2.50, "é"]' WHERE id < 50;
DELETE FROM items WHERE id % 7 = 0;
INSERT INTO items (id, price, name, any_number, amounts) VALUES
    (20000, 1, E'tab\t and \\ and ''quote''', 'NaN', '{}'), (20001, 2, '', 1e30, '{1.5,NULL}');
UPDATE parts SET a = a + 500 WHERE a < 20;
UPDATE parts SET v = 'new' WHERE b LIKE '%7';
INSERT INTO empty SELECT gen_random_uuid(), i FROM generate_series(1, 10) i;
DELETE FROM keyless WHERE ctid IN (SELECT ctid FROM keyless WHERE a = 1 LIMIT 7);
UPDATE keyless SET b = 'y' WHERE ctid IN (SELECT ctid FROM keyless WHERE a = 2 LIMIT 3);
UPDATE whole SET name = 'n', tags = NULL WHERE id % 5 = 0;
UPDATE whole SET tags = '{}', uid = NULL, addr = NULL WHERE ctid IN (SELECT min(ctid) FROM whole GROUP BY id);
DELETE FROM whole WHERE ctid IN (SELECT max(ctid) FROM whole WHERE id < 12 GROUP BY id);
INSERT INTO whole (id, price) VALUES (1, 1), (1, 1), (1, 1);
DELETE FROM whole WHERE ctid IN (SELECT max(ctid) FROM whole WHERE name IS NULL AND price = 1);
BEGIN;
UPDATE items SET small = 7 WHERE id < 100;
TRUNCATE empty;
INSERT INTO empty SELECT gen_random_uuid(), i FROM generate_series(1, 3) i;
COMMIT;
