-- What subscribers of 14 to 18 have sent, from the logs of publishers (log_statement = all).
-- A line "-- n" names the publisher's version; oids are 16384.
-- 18
SELECT pg_catalog.set_config('search_path', '', false);
-- 18
SELECT DISTINCT t.schemaname, t.tablename
  FROM pg_catalog.pg_publication_tables t
 WHERE t.pubname IN ('p1', 'p3', 'p2')
-- 18
SELECT c.oid, c.relreplident, c.relkind  FROM pg_catalog.pg_class c  INNER JOIN pg_catalog.pg_namespace n        ON (c.relnamespace = n.oid) WHERE n.nspname = 'public'   AND c.relname = 'part_1'
-- 18
SELECT a.attname,       a.atttypid,       a.attnum = ANY(i.indkey)  FROM pg_catalog.pg_attribute a  LEFT JOIN pg_catalog.pg_index i       ON (i.indexrelid = pg_get_replica_identity_index(16384)) WHERE a.attnum > 0::pg_catalog.int2   AND NOT a.attisdropped AND a.attgenerated = ''   AND a.attrelid = 16384 ORDER BY a.attnum
-- 18
SELECT c.oid, c.relreplident, c.relkind  FROM pg_catalog.pg_class c  INNER JOIN pg_catalog.pg_namespace n        ON (c.relnamespace = n.oid) WHERE n.nspname = 'public'   AND c.relname = 't1'
-- 18
SELECT c.oid, c.relreplident, c.relkind  FROM pg_catalog.pg_class c  INNER JOIN pg_catalog.pg_namespace n        ON (c.relnamespace = n.oid) WHERE n.nspname = 'shop'   AND c.relname = 'Odd T'
-- 18
SELECT t.pubname FROM
 pg_catalog.pg_publication t WHERE
 t.pubname IN ('p1', 'p3', 'p2')
-- 18
SELECT DISTINCT t.schemaname, t.tablename 
, t.attnames
FROM pg_catalog.pg_publication_tables t
 WHERE t.pubname IN ('p1', 'p3', 'p2')
-- 18
SELECT DISTINCT  (CASE WHEN (array_length(gpt.attrs, 1) = c.relnatts)   THEN NULL ELSE gpt.attrs END)  FROM pg_publication p,  LATERAL pg_get_publication_tables(p.pubname) gpt,  pg_class c WHERE gpt.relid = 16384 AND c.oid = gpt.relid   AND p.pubname IN ( 'p1', 'p3', 'p2' )
-- 18
SELECT a.attnum,       a.attname,       a.atttypid,       a.attnum = ANY(i.indkey)  FROM pg_catalog.pg_attribute a  LEFT JOIN pg_catalog.pg_index i       ON (i.indexrelid = pg_get_replica_identity_index(16384)) WHERE a.attnum > 0::pg_catalog.int2   AND NOT a.attisdropped AND a.attgenerated = ''   AND a.attrelid = 16384 ORDER BY a.attnum
-- 18
SELECT DISTINCT pg_get_expr(gpt.qual, gpt.relid)  FROM pg_publication p,  LATERAL pg_get_publication_tables(p.pubname) gpt WHERE gpt.relid = 16384   AND p.pubname IN ( 'p1', 'p3', 'p2' )
-- 18
SELECT DISTINCT P.pubname AS pubname
FROM pg_publication P,
     LATERAL pg_get_publication_tables(P.pubname) GPT
     JOIN pg_subscription_rel PS ON (GPT.relid = PS.srrelid OR     GPT.relid IN (SELECT relid FROM pg_partition_ancestors(PS.srrelid) UNION                   SELECT relid FROM pg_partition_tree(PS.srrelid))),
     pg_class C JOIN pg_namespace N ON (N.oid = C.relnamespace)
WHERE C.oid = GPT.relid AND P.pubname IN ('p1', 'p3', 'p2')
-- 18
SELECT DISTINCT n.nspname, c.relname, gpt.attrs
       FROM pg_class c
         JOIN pg_namespace n ON n.oid = c.relnamespace
         JOIN ( SELECT (pg_get_publication_tables(VARIADIC array_agg(pubname::text))).*
                FROM pg_publication
                WHERE pubname IN ( 'p1', 'p3', 'p2' )) AS gpt
             ON gpt.relid = c.oid
-- 18
SELECT DISTINCT P.pubname AS pubname
FROM pg_publication P,
     LATERAL pg_get_publication_tables(P.pubname) GPT
     JOIN pg_subscription_rel PS ON (GPT.relid = PS.srrelid OR     GPT.relid IN (SELECT relid FROM pg_partition_ancestors(PS.srrelid) UNION                   SELECT relid FROM pg_partition_tree(PS.srrelid))),
     pg_class C JOIN pg_namespace N ON (N.oid = C.relnamespace)
WHERE C.oid = GPT.relid AND P.pubname IN ('p1', 'p3', 'p2')
AND NOT (N.nspname = 'public' AND C.relname = 't1')
AND NOT (N.nspname = 'public' AND C.relname = 'part_1')
AND NOT (N.nspname = 'shop' AND C.relname = 'Odd T')
-- 14
SELECT pg_catalog.set_config('search_path', '', false);
-- 14
SELECT t.pubname FROM
 pg_catalog.pg_publication t WHERE
 t.pubname IN ('p1', 'p3')
-- 14
SELECT DISTINCT P.pubname AS pubname
FROM pg_publication P,
     LATERAL pg_get_publication_tables(P.pubname) GPT
     JOIN pg_subscription_rel PS ON (GPT.relid = PS.srrelid OR     GPT.relid IN (SELECT relid FROM pg_partition_ancestors(PS.srrelid) UNION                   SELECT relid FROM pg_partition_tree(PS.srrelid))),
     pg_class C JOIN pg_namespace N ON (N.oid = C.relnamespace)
WHERE C.oid = GPT.relid AND P.pubname IN ('p1', 'p3')
-- 14
SELECT DISTINCT t.schemaname, t.tablename 
FROM pg_catalog.pg_publication_tables t
 WHERE t.pubname IN ( 'p1', 'p3' )
-- 14
SELECT c.oid, c.relreplident, c.relkind  FROM pg_catalog.pg_class c  INNER JOIN pg_catalog.pg_namespace n        ON (c.relnamespace = n.oid) WHERE n.nspname = 'public'   AND c.relname = 'part_1'
-- 14
SELECT a.attnum,       a.attname,       a.atttypid,       a.attnum = ANY(i.indkey)  FROM pg_catalog.pg_attribute a  LEFT JOIN pg_catalog.pg_index i       ON (i.indexrelid = pg_get_replica_identity_index(16384)) WHERE a.attnum > 0::pg_catalog.int2   AND NOT a.attisdropped AND a.attgenerated = ''   AND a.attrelid = 16384 ORDER BY a.attnum
-- 14
SELECT c.oid, c.relreplident, c.relkind  FROM pg_catalog.pg_class c  INNER JOIN pg_catalog.pg_namespace n        ON (c.relnamespace = n.oid) WHERE n.nspname = 'public'   AND c.relname = 't1'
-- 14
SELECT c.oid, c.relreplident, c.relkind  FROM pg_catalog.pg_class c  INNER JOIN pg_catalog.pg_namespace n        ON (c.relnamespace = n.oid) WHERE n.nspname = 'shop'   AND c.relname = 'Odd T'
-- 14
SELECT DISTINCT P.pubname AS pubname
FROM pg_publication P,
     LATERAL pg_get_publication_tables(P.pubname) GPT
     JOIN pg_subscription_rel PS ON (GPT.relid = PS.srrelid OR     GPT.relid IN (SELECT relid FROM pg_partition_ancestors(PS.srrelid) UNION                   SELECT relid FROM pg_partition_tree(PS.srrelid))),
     pg_class C JOIN pg_namespace N ON (N.oid = C.relnamespace)
WHERE C.oid = GPT.relid AND P.pubname IN ('p1', 'p3')
AND NOT (N.nspname = 'public' AND C.relname = 't1')
AND NOT (N.nspname = 'public' AND C.relname = 'part_1')
AND NOT (N.nspname = 'shop' AND C.relname = 'Odd T')
-- 15
SELECT pg_catalog.set_config('search_path', '', false);
-- 15
SELECT t.pubname FROM
 pg_catalog.pg_publication t WHERE
 t.pubname IN ('p1', 'p3', 'p2')
-- 15
SELECT DISTINCT P.pubname AS pubname
FROM pg_publication P,
     LATERAL pg_get_publication_tables(P.pubname) GPT
     JOIN pg_subscription_rel PS ON (GPT.relid = PS.srrelid OR     GPT.relid IN (SELECT relid FROM pg_partition_ancestors(PS.srrelid) UNION                   SELECT relid FROM pg_partition_tree(PS.srrelid))),
     pg_class C JOIN pg_namespace N ON (N.oid = C.relnamespace)
WHERE C.oid = GPT.relid AND P.pubname IN ('p1', 'p3', 'p2')
-- 15
SELECT DISTINCT t.schemaname, t.tablename 
, t.attnames
FROM pg_catalog.pg_publication_tables t
 WHERE t.pubname IN ( 'p1', 'p3', 'p2' )
-- 15
SELECT c.oid, c.relreplident, c.relkind  FROM pg_catalog.pg_class c  INNER JOIN pg_catalog.pg_namespace n        ON (c.relnamespace = n.oid) WHERE n.nspname = 'public'   AND c.relname = 't1'
-- 15
SELECT DISTINCT  (CASE WHEN (array_length(gpt.attrs, 1) = c.relnatts)   THEN NULL ELSE gpt.attrs END)  FROM pg_publication p,  LATERAL pg_get_publication_tables(p.pubname) gpt,  pg_class c WHERE gpt.relid = 16384 AND c.oid = gpt.relid   AND p.pubname IN ( 'p1', 'p3', 'p2' )
-- 15
SELECT c.oid, c.relreplident, c.relkind  FROM pg_catalog.pg_class c  INNER JOIN pg_catalog.pg_namespace n        ON (c.relnamespace = n.oid) WHERE n.nspname = 'public'   AND c.relname = 'part_1'
-- 15
SELECT a.attnum,       a.attname,       a.atttypid,       a.attnum = ANY(i.indkey)  FROM pg_catalog.pg_attribute a  LEFT JOIN pg_catalog.pg_index i       ON (i.indexrelid = pg_get_replica_identity_index(16384)) WHERE a.attnum > 0::pg_catalog.int2   AND NOT a.attisdropped AND a.attgenerated = ''   AND a.attrelid = 16384 ORDER BY a.attnum
-- 15
SELECT DISTINCT pg_get_expr(gpt.qual, gpt.relid)  FROM pg_publication p,  LATERAL pg_get_publication_tables(p.pubname) gpt WHERE gpt.relid = 16384   AND p.pubname IN ( 'p1', 'p3', 'p2' )
-- 15
SELECT c.oid, c.relreplident, c.relkind  FROM pg_catalog.pg_class c  INNER JOIN pg_catalog.pg_namespace n        ON (c.relnamespace = n.oid) WHERE n.nspname = 'shop'   AND c.relname = 'Odd T'
-- 15
SELECT DISTINCT P.pubname AS pubname
FROM pg_publication P,
     LATERAL pg_get_publication_tables(P.pubname) GPT
     JOIN pg_subscription_rel PS ON (GPT.relid = PS.srrelid OR     GPT.relid IN (SELECT relid FROM pg_partition_ancestors(PS.srrelid) UNION                   SELECT relid FROM pg_partition_tree(PS.srrelid))),
     pg_class C JOIN pg_namespace N ON (N.oid = C.relnamespace)
WHERE C.oid = GPT.relid AND P.pubname IN ('p1', 'p3', 'p2')
AND NOT (N.nspname = 'public' AND C.relname = 't1')
AND NOT (N.nspname = 'public' AND C.relname = 'part_1')
AND NOT (N.nspname = 'shop' AND C.relname = 'Odd T')
-- 16
SELECT pg_catalog.set_config('search_path', '', false);
-- 16
SELECT t.pubname FROM
 pg_catalog.pg_publication t WHERE
 t.pubname IN ('p1', 'p3', 'p2')
-- 16
SELECT DISTINCT P.pubname AS pubname
FROM pg_publication P,
     LATERAL pg_get_publication_tables(P.pubname) GPT
     JOIN pg_subscription_rel PS ON (GPT.relid = PS.srrelid OR     GPT.relid IN (SELECT relid FROM pg_partition_ancestors(PS.srrelid) UNION                   SELECT relid FROM pg_partition_tree(PS.srrelid))),
     pg_class C JOIN pg_namespace N ON (N.oid = C.relnamespace)
WHERE C.oid = GPT.relid AND P.pubname IN ('p1', 'p3', 'p2')
-- 16
SELECT DISTINCT n.nspname, c.relname, gpt.attrs
       FROM pg_class c
         JOIN pg_namespace n ON n.oid = c.relnamespace
         JOIN ( SELECT (pg_get_publication_tables(VARIADIC array_agg(pubname::text))).*
                FROM pg_publication
                WHERE pubname IN ( 'p1', 'p3', 'p2' )) AS gpt
             ON gpt.relid = c.oid
-- 16
SELECT c.oid, c.relreplident, c.relkind  FROM pg_catalog.pg_class c  INNER JOIN pg_catalog.pg_namespace n        ON (c.relnamespace = n.oid) WHERE n.nspname = 'public'   AND c.relname = 'part_1'
-- 16
SELECT DISTINCT  (CASE WHEN (array_length(gpt.attrs, 1) = c.relnatts)   THEN NULL ELSE gpt.attrs END)  FROM pg_publication p,  LATERAL pg_get_publication_tables(p.pubname) gpt,  pg_class c WHERE gpt.relid = 16384 AND c.oid = gpt.relid   AND p.pubname IN ( 'p1', 'p3', 'p2' )
-- 16
SELECT a.attnum,       a.attname,       a.atttypid,       a.attnum = ANY(i.indkey)  FROM pg_catalog.pg_attribute a  LEFT JOIN pg_catalog.pg_index i       ON (i.indexrelid = pg_get_replica_identity_index(16384)) WHERE a.attnum > 0::pg_catalog.int2   AND NOT a.attisdropped AND a.attgenerated = ''   AND a.attrelid = 16384 ORDER BY a.attnum
-- 16
SELECT DISTINCT pg_get_expr(gpt.qual, gpt.relid)  FROM pg_publication p,  LATERAL pg_get_publication_tables(p.pubname) gpt WHERE gpt.relid = 16384   AND p.pubname IN ( 'p1', 'p3', 'p2' )
-- 16
SELECT c.oid, c.relreplident, c.relkind  FROM pg_catalog.pg_class c  INNER JOIN pg_catalog.pg_namespace n        ON (c.relnamespace = n.oid) WHERE n.nspname = 'shop'   AND c.relname = 'Odd T'
-- 16
SELECT c.oid, c.relreplident, c.relkind  FROM pg_catalog.pg_class c  INNER JOIN pg_catalog.pg_namespace n        ON (c.relnamespace = n.oid) WHERE n.nspname = 'public'   AND c.relname = 't1'
-- 16
SELECT DISTINCT P.pubname AS pubname
FROM pg_publication P,
     LATERAL pg_get_publication_tables(P.pubname) GPT
     JOIN pg_subscription_rel PS ON (GPT.relid = PS.srrelid OR     GPT.relid IN (SELECT relid FROM pg_partition_ancestors(PS.srrelid) UNION                   SELECT relid FROM pg_partition_tree(PS.srrelid))),
     pg_class C JOIN pg_namespace N ON (N.oid = C.relnamespace)
WHERE C.oid = GPT.relid AND P.pubname IN ('p1', 'p3', 'p2')
AND NOT (N.nspname = 'public' AND C.relname = 't1')
AND NOT (N.nspname = 'public' AND C.relname = 'part_1')
AND NOT (N.nspname = 'shop' AND C.relname = 'Odd T')
-- 17
SELECT pg_catalog.set_config('search_path', '', false);
-- 17
SELECT t.pubname FROM
 pg_catalog.pg_publication t WHERE
 t.pubname IN ('p1', 'p3', 'p2')
-- 17
SELECT DISTINCT P.pubname AS pubname
FROM pg_publication P,
     LATERAL pg_get_publication_tables(P.pubname) GPT
     JOIN pg_subscription_rel PS ON (GPT.relid = PS.srrelid OR     GPT.relid IN (SELECT relid FROM pg_partition_ancestors(PS.srrelid) UNION                   SELECT relid FROM pg_partition_tree(PS.srrelid))),
     pg_class C JOIN pg_namespace N ON (N.oid = C.relnamespace)
WHERE C.oid = GPT.relid AND P.pubname IN ('p1', 'p3', 'p2')
-- 17
SELECT DISTINCT n.nspname, c.relname, gpt.attrs
       FROM pg_class c
         JOIN pg_namespace n ON n.oid = c.relnamespace
         JOIN ( SELECT (pg_get_publication_tables(VARIADIC array_agg(pubname::text))).*
                FROM pg_publication
                WHERE pubname IN ( 'p1', 'p3', 'p2' )) AS gpt
             ON gpt.relid = c.oid
-- 17
SELECT c.oid, c.relreplident, c.relkind  FROM pg_catalog.pg_class c  INNER JOIN pg_catalog.pg_namespace n        ON (c.relnamespace = n.oid) WHERE n.nspname = 'public'   AND c.relname = 'part_1'
-- 17
SELECT DISTINCT  (CASE WHEN (array_length(gpt.attrs, 1) = c.relnatts)   THEN NULL ELSE gpt.attrs END)  FROM pg_publication p,  LATERAL pg_get_publication_tables(p.pubname) gpt,  pg_class c WHERE gpt.relid = 16384 AND c.oid = gpt.relid   AND p.pubname IN ( 'p1', 'p3', 'p2' )
-- 17
SELECT a.attnum,       a.attname,       a.atttypid,       a.attnum = ANY(i.indkey)  FROM pg_catalog.pg_attribute a  LEFT JOIN pg_catalog.pg_index i       ON (i.indexrelid = pg_get_replica_identity_index(16384)) WHERE a.attnum > 0::pg_catalog.int2   AND NOT a.attisdropped AND a.attgenerated = ''   AND a.attrelid = 16384 ORDER BY a.attnum
-- 17
SELECT DISTINCT pg_get_expr(gpt.qual, gpt.relid)  FROM pg_publication p,  LATERAL pg_get_publication_tables(p.pubname) gpt WHERE gpt.relid = 16384   AND p.pubname IN ( 'p1', 'p3', 'p2' )
-- 17
SELECT c.oid, c.relreplident, c.relkind  FROM pg_catalog.pg_class c  INNER JOIN pg_catalog.pg_namespace n        ON (c.relnamespace = n.oid) WHERE n.nspname = 'shop'   AND c.relname = 'Odd T'
-- 17
SELECT c.oid, c.relreplident, c.relkind  FROM pg_catalog.pg_class c  INNER JOIN pg_catalog.pg_namespace n        ON (c.relnamespace = n.oid) WHERE n.nspname = 'public'   AND c.relname = 't1'
-- 17
SELECT DISTINCT P.pubname AS pubname
FROM pg_publication P,
     LATERAL pg_get_publication_tables(P.pubname) GPT
     JOIN pg_subscription_rel PS ON (GPT.relid = PS.srrelid OR     GPT.relid IN (SELECT relid FROM pg_partition_ancestors(PS.srrelid) UNION                   SELECT relid FROM pg_partition_tree(PS.srrelid))),
     pg_class C JOIN pg_namespace N ON (N.oid = C.relnamespace)
WHERE C.oid = GPT.relid AND P.pubname IN ('p1', 'p3', 'p2')
AND NOT (N.nspname = 'public' AND C.relname = 't1')
AND NOT (N.nspname = 'public' AND C.relname = 'part_1')
AND NOT (N.nspname = 'shop' AND C.relname = 'Odd T')
