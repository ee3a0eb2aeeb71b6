-- Functions, operators, casts and errors that a query without tables can reach, one on each line:
-- what a stock server answers, word for word. What it refuses is beside what it answers.
SELECT left('abcdef', -2), left('abc', 0), right('abcdef', -2), right('abc', 10), left('abc', -10)
SELECT substring('abcdef', 0), substring('abcdef', -2), substring('abcdef', 0, 3), substring('abcdef', -1, 4), substring('abcdef', 2, 0)
SELECT substr('abcdef', -3), substr('abcdef', -3, 5)
SELECT split_part('a,b,c', ',', -1), split_part('a,b,c', ',', 4), split_part('a,b,c', '', 1)
SELECT repeat('ab', -1), repeat('ab', 0), repeat('ab', 3)
SELECT regexp_replace('foobarbaz', 'b..', 'X'), regexp_replace('foobarbaz', 'b..', 'X', 'g'), regexp_replace('foobarbaz', 'b(..)', 'X\1Y', 'g')
SELECT E'a\nb' ~ 'a.b', E'a\nb' ~ '^b', E'a\n' ~ 'a$'
SELECT array_to_string('{a,NULL,b}'::text[], ',', '*'), array_to_string('{}'::text[], ','), array_to_string(ARRAY[1,2], NULL), array_to_string(NULL::text[], ',')
SELECT array_length('{}'::int[], 1), array_length('{1,2}'::int[], 2), array_length('{1,2}'::int[], 0), array_length('{1,2}'::int[], NULL), array_upper('{1,2}'::int[], 2), array_lower('{1,2}'::int[],3)
SELECT array_append('{1,2}'::int[], NULL), array_append(NULL::int[], 1), array_prepend(1, NULL::int[]), array_cat(NULL, '{1}'::int[]), array_cat('{1}'::int[], NULL)
SELECT '{1,2}'::int[] || NULL::int[], NULL::int[] || '{1}'::int[], '{1}'::int[] || NULL::int, NULL::int || '{1}'::int[]
SELECT array_remove('{1,NULL,2}'::int[], NULL), array_remove('{1,2,1}'::int[], 1)
SELECT array_position('{a,NULL,b}'::text[], NULL), array_position('{a,NULL,b}'::text[], 'b'), array_position('{a}'::text[], 'z')
SELECT string_to_array('', ','), string_to_array('a,b', ''), string_to_array('abc', NULL), string_to_array('a,,b', ','), string_to_array(NULL, ',')
SELECT string_to_array('a,b', ',', 'a')
SELECT ARRAY[1,2] @> ARRAY[1], ARRAY[1,NULL] @> ARRAY[NULL]::int[], ARRAY[1] <@ ARRAY[1,2], ARRAY[1,NULL] && ARRAY[NULL,2], '{}'::int[] && '{}'::int[], '{}'::int[] <@ '{1}'::int[]
SELECT 1 = ANY ('{1,NULL}'::int[]), 2 = ANY ('{1,NULL}'::int[]), 2 <> ALL ('{1,NULL}'::int[]), 1 <> ALL ('{1,NULL}'::int[]), NULL = ANY ('{1}'::int[]), 1 = ANY (NULL::int[]), 1 = ANY('{}'::int[]), NULL = ANY('{}'::int[])
SELECT 1 < ANY ('{1,2}'::int[]), 1 > ALL ('{0,NULL}'::int[]), 'abc' LIKE ANY ('{a%,b%}'::text[]), 'abc' ~ ANY ('{^b,^a}'::text[])
SELECT 1 IN (NULL), 1 IN (1, NULL), 1 NOT IN (2, NULL), NULL IN (SELECT 1 WHERE false), 1 NOT IN (SELECT NULL::int), NULL NOT IN (SELECT 1)
SELECT ARRAY[1,2] = ARRAY[1,2], ARRAY[1,NULL] = ARRAY[1,NULL], ARRAY[1,2] < ARRAY[1,3], ARRAY[1] < ARRAY[1,0], '{}'::int[] = '{}'::int[], ARRAY[NULL]::int[] < ARRAY[1]
SELECT array_upper('1 2'::int2vector,1), array_lower('1 2'::int2vector,1), array_length('1 2'::int2vector,1), array_upper(''::int2vector,1)
SELECT x FROM unnest('{3,1,2}'::int[]) x
SELECT unnest('{3,1,2}'::int[]), unnest('{a,b}'::text[])
SELECT generate_subscripts('{4,5}'::int[], 1), generate_subscripts('1 2'::int2vector, 1)
SELECT generate_subscripts('{4,5}'::int[], 2)
SELECT generate_series(3,1), 1
SELECT generate_series(3,1,-1)
SELECT * FROM generate_series(1,10,3)
SELECT * FROM generate_series(1,NULL)
SELECT json_build_object('a', 1, 'b', NULL, 'c', true, 'd', 'x"y', 'e', 1.5)
SELECT string_agg(x, ',' ORDER BY x DESC) FROM (VALUES ('a'),('B'),('b'),(NULL)) v(x)
SELECT string_agg(DISTINCT x, ',') FROM (VALUES ('a'),('B'),('b'),('a')) v(x)
SELECT array_agg(x ORDER BY x NULLS FIRST) FROM (VALUES ('a'),('B'),('b'),(NULL)) v(x)
SELECT x FROM (VALUES ('a'),('B'),('b'),('A'),('_'),('ä'),('Z'),(NULL)) v(x) ORDER BY x
SELECT x FROM (VALUES ('a'::name),('B'),('b'),('A'),('_'),('ä'),('Z'),(NULL)) v(x) ORDER BY x DESC
SELECT x FROM (VALUES ('a'),('B'),('b')) v(x) ORDER BY x COLLATE "C"
SELECT 'a' < 'B', 'a'::name < 'B'::name, 'a' COLLATE "C" < 'B', 'a' > 'Z'
SELECT 'abc' LIKE 'a\%', 'a%' LIKE 'a\%', 'a_c' LIKE 'a|_c' ESCAPE '|', 'a%' LIKE 'a%' ESCAPE '', 'abc' LIKE '%', '' LIKE '', 'a\' LIKE 'a\\'
SELECT NULL LIKE 'a', 'a' LIKE NULL
SELECT 1.50, 1.0, .5, 1e3, 1e-5, 100000000000000000000, 1.5::numeric(5,1), 1.23456789012345678901234567890, 0.1 + 0.2, 1.10 * 1.10, 10.0 / 4
SELECT 'infinity'::date, '2024-02-29'::date + 1, '2024-02-29'::timestamp, '2024-02-29 12:00:00.100'::timestamp, '2024-02-29 12:00+02'::timestamptz, '0044-03-15 BC'::date, 'infinity'::timestamp
SELECT 'a'::char, 'ab'::char(3), 'ab'::char(3)::text || 'x', 'abc'::varchar(2), 'abc'::"char", ''::"char", 'x'::bpchar, 'ab  '::char(4) = 'ab'
SELECT '\x4142'::bytea, 'abc'::bytea, E'\\001'::bytea
SELECT 't'::bool, 'yes'::bool, 'off'::bool, '1'::bool, true::text, true::int, 1::bool, 'tr'::bool
SELECT 'pg_class'::regclass, 1259::regclass, 'pg_class'::regclass::oid, 99999::regclass, '99999'::regclass, 0::regclass, 'pg_catalog.pg_class'::regclass::text, '"pg_class"'::regclass
SELECT 'int'::regtype, 'int4'::regtype::oid, 'pg_catalog.int4'::regtype, 'timestamp with time zone'::regtype, 'int[]'::regtype, 99999::regtype, 0::regtype, '_int4'::regtype
SELECT 'pg_class'::regclass = 1259, 1259::oid = 'pg_class'::regclass, 'pg_class'::regclass IN (1259), 1259 = 'pg_class'::regclass::int
SELECT '4294967295'::oid, '-1'::oid, 4294967295::oid, 2147483648::oid::int8, (-1)::oid
SELECT 1::oid::int, 4294967295::oid::int
SELECT x::int2 FROM (VALUES ('0x1F'),('1_000'),(' 7 '),('0b11'),('0o17')) v(x)
SELECT x::bool FROM (VALUES ('1'),('yes'),('of'),('tr'),(' t ')) v(x)
SELECT x::oid FROM (VALUES ('1'),('-5')) v(x)
SELECT x::numeric FROM (VALUES ('1.50'),('2')) v(x)
SELECT x::float8 FROM (VALUES ('1.5'),('2')) v(x)
SELECT x::regclass FROM (VALUES ('pg_class'),('pg_type')) v(x)
SELECT coalesce(NULL, 1.5, 2), nullif(1, 2), greatest(1, NULL, 3), least(NULL, NULL), greatest('a', 'B')
SELECT CASE WHEN NULL THEN 1 ELSE 2 END, CASE NULL WHEN NULL THEN 1 END
SELECT NULL AND false, NULL OR true, NOT NULL, NULL = NULL, NULL IS UNKNOWN, true IS NOT TRUE, NULL IS NOT DISTINCT FROM NULL
SELECT 1 BETWEEN 2 AND 0, 1 BETWEEN SYMMETRIC 2 AND 0, NULL BETWEEN 1 AND 2, 1 NOT BETWEEN NULL AND 0
SELECT extract(year FROM '2024-01-01'::date), date_trunc('day', '2024-01-01 12:00'::timestamp), date_part('dow', '2024-01-01'::date)
SELECT obj_description(1259, 'pg_class'), col_description(1259, 1), format_type(NULL, 1), format_type(23, NULL), format_type(1043, 14), format_type(-1::int, NULL)
SELECT pg_table_is_visible(1259), pg_table_is_visible(99999), pg_type_is_visible(23)
SELECT current_setting('server_version_num')::int >= 140000, current_setting('nope', true), current_setting('search_path')
SELECT '0/16B3748'::pg_lsn, '0/16B3748'::pg_lsn - '0/0'::pg_lsn, '0/0'::pg_lsn + 16, '0/1'::pg_lsn < '1/0'::pg_lsn, 'FFFFFFFF/FFFFFFFF'::pg_lsn, pg_wal_lsn_diff('FFFFFFFF/FFFFFFFF', '0/0'), pg_wal_lsn_diff('0/0', '0/A')
SELECT max(x), x FROM (VALUES ('0/1'::pg_lsn)) v(x) GROUP BY x
SELECT oid, * FROM pg_namespace LIMIT 0
SELECT "a""b" FROM (SELECT 1 AS "a""b") "q""r"
SELECT "q""r"."a'b{}%s$1" FROM (SELECT 1 AS "a'b{}%s$1") "q""r"
WITH "w$""x" AS (SELECT 1 AS "A") SELECT "A" FROM "w$""x"
SELECT 'a{0}b' || '{1}' LIKE '%{0}%', '{}' || split_part('a{0}b,{1}', ',', 2)
SELECT (-1)::oid, 4294967295::oid::int, 1::oid::int
SELECT x FROM generate_series(3,1,-1) x
SELECT x, y FROM unnest('{3,1,2}'::int[]) x, unnest('{b,a}'::text[]) y
SELECT v.a, x FROM (VALUES (2,'{3,1,2}'::int[]),(1,'{9,8}')) v(a,b), unnest(v.b) x
SELECT v.a, x, n FROM (VALUES (2,'{3,1,2}'::int[]),(1,'{9,8}')) v(a,b), unnest(v.b) WITH ORDINALITY AS u(x,n)
SELECT v.a, x FROM (VALUES (2,3),(1,2)) v(a,b), generate_series(1,v.b) x
SELECT v.a, x FROM (VALUES (2,3),(1,2)) v(a,b), generate_series(v.b,1,-1) x
SELECT array_agg(x) FROM unnest('{3,1,2}'::int[]) x
SELECT string_agg(x::text, ',') FROM generate_series(3,1,-1) x
SELECT string_agg(x, ',') FROM unnest('{c,a,b}'::text[]) x
SELECT i, ('7 8 9'::int2vector)[i] FROM generate_subscripts('7 8 9'::int2vector, 1) i
SELECT generate_subscripts('7 8 9'::int2vector, 1)
SELECT quote_literal('a''b'), quote_literal('a\b'), quote_literal(relname) FROM (VALUES ('x'::name)) v(relname)
SELECT lpad('abc', 5), lpad('abc', 2), lpad('abc', 6, 'xy'), rpad('abc', 6, 'xy'), rpad('abc', -1), lpad('abc', 5, ''), lpad('ä', 3, 'öü')
SELECT 'abc'::char(2), x::char(5) || '|', x::char(5) = 'ab', length(x::char(5)) FROM (VALUES ('ab'::text)) v(x)
SELECT concat(1, NULL, 'a', true, '2024-01-01'::date), concat_ws('-', 1, NULL, 2), concat_ws(NULL::text, 'a'), concat(NULL), concat_ws(',', NULL, NULL)
SELECT 'x' ~ ('^' || 'x$'), 'a.b' ~ ('a\.b' || ''), E'a\nb' ~ ('a.b' || ''), 'ABC' ~* ('b' || ''), 'x' !~ ('y' || '')
SELECT x::date, x::timestamp FROM (VALUES ('infinity'),('0044-03-15 BC'),('2024-02-29')) v(x)
SELECT x::timestamptz FROM (VALUES ('2024-02-29 10:00+03'),('infinity'::text)) v(x)
SELECT x::float8, x::float4, x::numeric FROM (VALUES ('1e15'),('0.1'),('NaN'),('-Infinity'),('1.50'),('123456789.123')) v(x)
SELECT 1e15::float8, 0.1::float4, 1e6::float4, 1e5::float4, 123456.7::float4, 1e-5::float8, 0.0001::float8, 'NaN'::float4
SELECT x::bool, x::bool::text, x::bool::int FROM (VALUES ('on'),('N')) v(x)
SELECT relname::text::int FROM pg_class WHERE false
SELECT 'a' IN ('a','b'), 3 BETWEEN 1 AND 5, 3 NOT BETWEEN 1 AND 2, 3 BETWEEN SYMMETRIC 5 AND 1, 3 NOT BETWEEN SYMMETRIC 5 AND 1, NULL BETWEEN 1 AND 2, 'b' BETWEEN 'a' AND 'c', 1.5 BETWEEN 1 AND 2
SELECT string_agg(DISTINCT x, ',') , array_agg(DISTINCT x), array_agg(DISTINCT x ORDER BY x DESC) FROM (VALUES ('a'),('B'),('b'),('a'),(NULL)) v(x)
SELECT regexp_replace('abcb', 'b', 'X', 'g'), regexp_replace('abcb', '(b)', '<\1>'), regexp_replace('abc', 'b', '[\&]'), regexp_replace('a;', ';$', '')
SELECT (ARRAY[1,2])[3], (ARRAY['a'])[1]
SELECT substring('abcdef', 2, -1)
SELECT split_part('a,b,c', ',', 0)
SELECT generate_series(1,3,0)
SELECT concat('a', NULL, 1, true, 1.5), concat_ws(',', 'a', NULL, 'b'), concat_ws(NULL, 'a'), concat()
SELECT abs(-2147483648)
SELECT '1.50'::numeric, '1e3'::numeric, 'NaN'::numeric, '  5 '::int, '5'::numeric(3,1), 1234.5::numeric(4,1)
SELECT 4294967296::oid
SELECT '4294967296'::oid
SELECT 'x'::oid
SELECT 'x'::int
SELECT ''::int
SELECT '99999999999'::int
SELECT '1.5'::int
SELECT x::int FROM (VALUES ('1'),('x')) v(x)
SELECT x::int8 FROM (VALUES ('1'),('x y')) v(x)
SELECT x::int2 FROM (VALUES ('1'),('99999')) v(x)
SELECT x::int4 FROM (VALUES ('1.5')) v(x)
SELECT x::int4 FROM (VALUES ('1e2')) v(x)
SELECT x::int4 FROM (VALUES ('')) v(x)
SELECT x::bool FROM (VALUES ('x')) v(x)
SELECT x::bool FROM (VALUES ('o')) v(x)
SELECT x::oid FROM (VALUES ('1'),('x')) v(x)
SELECT x::numeric FROM (VALUES ('x')) v(x)
SELECT x::float8 FROM (VALUES ('x')) v(x)
SELECT x::date FROM (VALUES ('2024-01-01'),('x')) v(x)
SELECT x::timestamp FROM (VALUES ('2024-01-01'),('x')) v(x)
SELECT x::regclass FROM (VALUES ('pg_class'),('x')) v(x)
SELECT 1 || 'a', 'a' || 1.5, 'a' || true, 'a' || 1.50::float8, 'a' || NULL, 'a' || ARRAY['b']
SELECT x + 1 FROM (VALUES (2147483647)) v(x)
SELECT x * 2 FROM (VALUES (9223372036854775807)) v(x)
SELECT x::int2 FROM (VALUES (99999)) v(x)
SELECT x::pg_lsn FROM (VALUES ('0/1'),('x')) v(x)
SELECT 'a'::xid
SELECT ARRAY['a b', NULL, '', 'q"', 'NULL', '{']::text, ARRAY[true,false]::text, ARRAY[1,NULL]::text, '{}'::int[]::text, '{1,2}'::int[] || 'x'
SELECT ARRAY['a b'] || 'c'::text, 'x' || ARRAY['b'], ARRAY['a'] || ARRAY['b'], ARRAY[1]||2||3
SELECT 'a'::text::int
SELECT repeat('x', 2000000000)
SELECT lpad('x', 2000000000)
SELECT 1 LIMIT 1.5
SELECT 1 LIMIT 99999999999999999999
SELECT 1 LIMIT 'x'
SELECT 1 OFFSET 1e400
SELECT abs(-5), abs(-1.50), abs(-2::int8), abs(-1.5::float8)
SELECT '²'::regclass
SELECT 1 ORDER BY 'x'
SELECT 'ab' LIKE coalesce('a\')
SELECT has_table_privilege('pg_class', 'SELECT'), has_table_privilege('pg_class', 'SELECT, INSERT'), has_table_privilege('pg_authid', 'SELECT')
SELECT has_table_privilege('pg_class', 'NOPE')
SELECT has_table_privilege('pg_class', 'select with grant option'), has_table_privilege('pg_class', '')
SELECT has_table_privilege('nobody_there', 'pg_class', 'SELECT')
SELECT has_table_privilege('public', 'pg_class', 'SELECT'), has_table_privilege('public', 'pg_authid', 'SELECT'), has_table_privilege('public', 'pg_class', 'INSERT')
SELECT has_table_privilege(10, 1259, 'SELECT'), has_table_privilege(99999, 1259, 'SELECT'), has_table_privilege(1259, 'MAINTAIN'), has_table_privilege(99999, 'SELECT')
SELECT pg_has_role('pg_nope', 'USAGE')
SELECT pg_has_role(current_user, 'USAGE')
SELECT 1 AS a GROUP BY 'x'
SELECT '1'::text::bytea, 'é x'::text::bytea, ''::text::bytea, NULL::text::bytea
SELECT '\x00fFe1'::text::bytea, '\x'::text::bytea
SELECT '\x123'::varchar::text::bytea
SELECT '\x12é'::text::bytea
SELECT '\x01 ff'::text::bytea
SELECT sha256('1'::text::bytea), sha256('\x00'::text::bytea), md5('1'::text::bytea)
SELECT 'a\q'::text::bytea
SELECT sha256('1'::text::bytea)::text, ''::text::bytea::varchar, 'ab'::bytea::varchar(3)
SELECT 'a\\b\000\377é'::text::bytea, '\134'::text::bytea, E'\\012\n'::text::bytea
SELECT '\400'::text::bytea
SELECT '\'::text::bytea
SELECT CASE WHEN true THEN unnest(ARRAY[1,2]) END
SELECT coalesce(unnest(ARRAY[1,NULL]), 5)
SELECT unnest(ARRAY[1,2]), unnest(ARRAY[1,2,3])
SELECT n FROM generate_series(1, 5) n LIMIT 1 + 1 OFFSET length('3')
WITH a AS (SELECT 1 AS x), b AS (WITH a AS (SELECT 2 AS x) SELECT x FROM a) SELECT a.x, b.x FROM a, b
VALUES (1::numeric), (2.50)
SELECT coalesce(NULL, 2.0, n), CASE WHEN n > 2 THEN n ELSE 2.500 END, greatest(n, 1.0), least(n, 9) FROM (VALUES (1.5),(NULL),(3.25)) v(n)
SELECT 1.50 UNION ALL SELECT 2 UNION ALL SELECT 3.125
SELECT count(*) FROM (SELECT 1.0 UNION SELECT 1.00 UNION SELECT 2) v
SELECT count(*), count(DISTINCT n), sum(n), sum(DISTINCT n), max(n) FROM (VALUES (1.0),(1.00),(2)) v(n)
SELECT array_agg(n ORDER BY n DESC) FROM (VALUES (1.0),(2),(3.25)) v(n)
SELECT 10.0 / 4 + 1, 7.5 % 2, round(2.345, 2) * 2, sqrt(2.0), 1e200 * 1e-200, 0.1::float8::numeric, div(7.5, 2), scale(1.10)
SELECT '1.50'::text::numeric + 1, '7'::text::int + 1, '{1,2}'::text::int[], ARRAY[1, 2]::text[]::bigint[]
SELECT interval '1 day' * 2.5 + interval '2 hours', timestamp '2024-03-01' - timestamp '2024-02-01 10:00', age(timestamp '2024-03-01', timestamp '2023-12-15')
SELECT interval '1 mon' > interval '29 days', interval '1 mon' = interval '30 days', time '12:00' < time '12:00:00.5'
SELECT '[1,5]'::int4range, '(1,2)'::int4range, '[2024-01-01,2024-02-01]'::daterange, '[1.0,2]'::numrange, '[,"a b")'::text
SELECT '[5,1]'::int4range
SELECT '{"a": [1, {"b": "x"}], "c": null}'::jsonb -> 'a' -> -1 ->> 'b', '{"a": [1, 2]}'::json #>> '{a,1}', '[1, 2]'::jsonb @> '2', '{"a": 1}'::jsonb ? 'a', '{"c": null}'::jsonb ->> 'c'
SELECT jsonb_array_length('{"a": 1}')
SELECT extract(second FROM timestamp '2024-01-01 10:20:30.5'), date_part('julian', date '2024-01-01'), date_trunc('century', timestamp '2024-01-01'), to_timestamp(1.5)
SELECT regexp_match('foobar', 'o(b.)'), substring('foobar' FROM 'o.'), regexp_split_to_array('a1b22c', '[0-9]+'), regexp_count('banana', 'an')
SELECT to_hex(-1), chr(233), ascii('é'), initcap('hello wORLD'), reverse('añb'), translate('abc', 'ab', 'x'), overlay('abcdef' placing 'X' from 2 for 3), bit_count('\x0ff0'::bytea)
SELECT encode('\x00ff'::bytea, 'base64'), decode('AP8=', 'base64'), get_byte('\x0102'::bytea, 1), sha512('a'::bytea) = sha512('b'::bytea), crc32('abc'::bytea)
SELECT sin(1), atan2(1, 2), 2.0::float8 ^ 0.5, ln(2.0::float8), cbrt(27::float8), width_bucket(5.35, 0.024, 10.06, 5), gcd(12, 18), lcm(4, 6), factorial(20)
SELECT sqrt(-1::float8)
SELECT ln(0::float8)
SELECT chr(0)
SELECT x LIKE p FROM (VALUES ('b', 'a\'), ('a', '%')) v(x, p)
SELECT x LIKE p FROM (VALUES ('ab', 'a\')) v(x, p)
SELECT sum(x) OVER (ORDER BY x RANGE BETWEEN 1 PRECEDING AND CURRENT ROW EXCLUDE CURRENT ROW) FROM generate_series(1, 4) x
SELECT regexp_match(repeat('a', 100000), 'a*a*a*b'), regexp_match('abcb', '(b)(.)'), substring('abc' FROM 'a(.)c')
SELECT '-1'::smallint::oid, 7::smallint::oid
SELECT make_interval(days => 7), make_interval(1, secs => 1.5), - interval '9007199254740993 us'
SELECT split_part('a,b,c', ',', -1), split_part('aaa', 'aa', -1), split_part('aaa', 'aa', 2), split_part('abc', '', 1), split_part('a,b', ',', -3), split_part('', ',', -1)
SELECT initcap('hello wORLD 1a éA'), decode(' 0a 0B', 'hex'), decode('a\\b\\134', 'escape')
SELECT decode('0', 'hex')
SELECT decode('0g', 'hex')
SELECT decode('\x41', 'escape')
