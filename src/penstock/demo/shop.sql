-- A small shop with the types and habits of real ones.

CREATE TABLE customers (
    id          bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    email       text NOT NULL UNIQUE,
    name        varchar(80) NOT NULL,
    address     jsonb NOT NULL,
    tags        text[] NOT NULL DEFAULT '{}',
    balance     numeric(12,2) NOT NULL DEFAULT 0,
    active      boolean NOT NULL DEFAULT true,
    joined      date NOT NULL DEFAULT current_date,
    updated_at  timestamptz NOT NULL DEFAULT now()
);

-- Pictures and descriptions are too long for a row: PostgreSQL moves them out (TOAST), and an
-- update of the price does not send them again. The key is text, and it changes at times.
CREATE TABLE products (
    sku         text PRIMARY KEY,
    name        text NOT NULL,
    description text NOT NULL,
    picture     bytea,
    price       numeric(10,2) NOT NULL,
    weight_kg   real,
    sizes       integer[],
    attributes  jsonb NOT NULL DEFAULT '{}',
    updated_at  timestamp NOT NULL DEFAULT now()
);
ALTER TABLE products ALTER COLUMN picture SET STORAGE EXTERNAL;
ALTER TABLE products ALTER COLUMN description SET STORAGE EXTERNAL;

CREATE TABLE orders (
    id          uuid PRIMARY KEY,
    customer_id bigint NOT NULL REFERENCES customers,
    status      text NOT NULL DEFAULT 'new',
    total       numeric(14,2) NOT NULL DEFAULT 0,
    ordered_at  timestamptz NOT NULL DEFAULT now(),
    deliver_on  date,
    note        text
);
CREATE INDEX ON orders (customer_id);

CREATE TABLE order_items (
    order_id    uuid REFERENCES orders ON DELETE CASCADE,
    line        smallint,
    sku         text NOT NULL REFERENCES products ON UPDATE CASCADE,
    quantity    integer NOT NULL,
    price       numeric(10,2) NOT NULL,
    discount    double precision,
    PRIMARY KEY (order_id, line)
);
CREATE INDEX ON order_items (sku);

CREATE TABLE payments (
    id          bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    order_id    uuid NOT NULL REFERENCES orders ON DELETE CASCADE,
    amount      numeric(14,2) NOT NULL,
    currency    char(3) NOT NULL DEFAULT 'EUR',
    details     json,
    paid_at     timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX ON payments (order_id);

CREATE TABLE events (
    id          bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    session     uuid NOT NULL,
    kind        text NOT NULL,
    payload     jsonb NOT NULL,
    peer        inet,
    took        interval,
    at          timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- No key at all, equal rows allowed: followed by REPLICA IDENTITY FULL.
CREATE TABLE carts (
    customer_id bigint NOT NULL,
    sku         text NOT NULL,
    quantity    integer NOT NULL
);
CREATE INDEX ON carts (customer_id);
ALTER TABLE carts REPLICA IDENTITY FULL;

INSERT INTO customers (email, name, address, tags, balance, joined)
SELECT 'customer' || n || '@example.org', 'Customer ' || n,
       jsonb_build_object('city', (ARRAY['Bergen', 'Porto', 'Łódź', 'Graz'])[n % 4 + 1], 'zip', 10000 + n),
       CASE WHEN n % 3 = 0 THEN '{}' ELSE ARRAY['tier ' || n % 5, 'quote " and \ comma,'] END,
       (n * 37 % 100000) / 100.0, date '2015-01-01' + n % 4000
FROM generate_series(1, 20000) AS n;

INSERT INTO products (sku, name, description, picture, price, weight_kg, sizes, attributes)
SELECT 'SKU-' || lpad(n::text, 6, '0'), 'Product ' || n,
       (SELECT string_agg(md5(n::text || i), ' ') FROM generate_series(1, 80) AS i),
       (SELECT decode(string_agg(md5(i::text || n), ''), 'hex') FROM generate_series(1, 200) AS i),
       (n * 91 % 50000 + 99) / 100.0, n % 700 / 10.0,
       CASE WHEN n % 4 = 0 THEN NULL ELSE ARRAY[36, n % 40, NULL] END,
       jsonb_build_object('colour', (ARRAY['red', 'green', 'blue'])[n % 3 + 1], 'stock', n % 50)
FROM generate_series(1, 2000) AS n;

INSERT INTO orders (id, customer_id, status, total, ordered_at, deliver_on)
SELECT gen_random_uuid(), 1 + n % 20000, (ARRAY['new', 'paid', 'shipped'])[n % 3 + 1], n % 90000 / 100.0,
       timestamptz '2024-01-01 00:00:00+00' + n * interval '7 minutes', date '2024-01-03' + n % 700
FROM generate_series(1, 50000) AS n;

INSERT INTO order_items (order_id, line, sku, quantity, price, discount)
SELECT id, line, 'SKU-' || lpad((1 + abs(hashtext(id::text || line)::bigint) % 2000)::text, 6, '0'),
       1 + line % 4, line * 3.5, CASE WHEN line = 2 THEN 0.1 END
FROM orders, generate_series(1, 3) AS line;

INSERT INTO payments (order_id, amount, details, paid_at)
SELECT id, total, json_build_object('method', 'card', 'last four', right(id::text, 4)), ordered_at + interval '5 minutes'
FROM orders WHERE status <> 'new';

INSERT INTO events (session, kind, payload, peer, took, at)
SELECT gen_random_uuid(), (ARRAY['view', 'search', 'click'])[n % 3 + 1], jsonb_build_object('n', n, 'page', '/p/' || n),
       ('10.0.' || n % 256 || '.1')::inet, n % 1000 * interval '1 millisecond',
       timestamptz '2025-01-01 00:00:00+00' + n * interval '11 seconds'
FROM generate_series(1, 100000) AS n;

INSERT INTO carts SELECT 1 + n % 900, 'SKU-' || lpad((1 + n % 2000)::text, 6, '0'), 1 FROM generate_series(1, 3000) AS n;

CREATE PUBLICATION shop FOR ALL TABLES;
ANALYZE;
