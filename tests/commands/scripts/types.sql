-- CREATE TYPE
CREATE TYPE color AS ENUM ('red', 'green', 'blue')
CREATE TYPE color AS ENUM ()
CREATE TYPE public.mood AS ENUM ('sad', 'so, so', 'it''s "ok"', 'é😀')
CREATE TYPE nope.color AS ENUM ('a')
CREATE TYPE empty AS ENUM ()
CREATE TYPE "Strange name" AS ENUM ('', ' ', 'NULL')
CREATE TYPE fits AS ENUM ('xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx')
CREATE TYPE long AS ENUM ('a', 'xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx')
CREATE TYPE long AS ENUM ('éééééééééééééééééééééééééééééééé')
-- its columns
CREATE TABLE t (a int PRIMARY KEY, c color, m mood)
CREATE TABLE color (a int)
CREATE TABLE IF NOT EXISTS color (a int)
CREATE TYPE t AS ENUM ('a')
CREATE TABLE x (c color(3))
CREATE TABLE x (c "Strange name"(1))
CREATE TABLE x (c colour)
CREATE TABLE x (c public.colour)
CREATE TABLE x (c nope.color)
CREATE TABLE x (c color DEFAULT 'pink')
CREATE TABLE x (c public.color DEFAULT 'Red')
CREATE TABLE x (c "Strange name" DEFAULT 'x')
CREATE TABLE x (c color DEFAULT 7)
CREATE TABLE x (c color DEFAULT 1.5)
CREATE TABLE x (c color DEFAULT now())
CREATE TABLE x (c color DEFAULT true)
CREATE TABLE d (c color DEFAULT 'red' PRIMARY KEY, s "Strange name" DEFAULT '', n color DEFAULT NULL)
ALTER TABLE t ADD COLUMN n public.color
ALTER TABLE t ADD COLUMN o color DEFAULT 'pink'
ALTER TABLE t ADD COLUMN o colour
-- ALTER TYPE
ALTER TYPE color ADD VALUE 'pink'
ALTER TYPE color ADD VALUE 'pink'
ALTER TYPE color ADD VALUE IF NOT EXISTS 'pink'
ALTER TYPE color ADD VALUE 'dark red' BEFORE 'red'
ALTER TYPE public.color ADD VALUE 'light red' AFTER 'red'
ALTER TYPE color ADD VALUE 'lighter red' AFTER 'red'
ALTER TYPE color ADD VALUE 'x' AFTER 'nope'
ALTER TYPE color ADD VALUE 'pink' BEFORE 'nope'
ALTER TYPE color ADD VALUE 'xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx'
ALTER TYPE empty ADD VALUE 'first'
ALTER TYPE colour ADD VALUE 'x'
ALTER TYPE nope.color ADD VALUE 'x'
ALTER TYPE int4 ADD VALUE 'x'
-- in row filters
CREATE PUBLICATION p FOR TABLE t WHERE (c = 'red')
CREATE PUBLICATION p FOR TABLE t WHERE (c = 'nope')
CREATE PUBLICATION p FOR TABLE t WHERE (c > a)
CREATE PUBLICATION p FOR TABLE t WHERE (c = m)
CREATE PUBLICATION p FOR TABLE t WHERE (c)
CREATE PUBLICATION p FOR TABLE t (a, c) WHERE (a > 1)
-- DROP TYPE
DROP TYPE colour
DROP TYPE nope.color
DROP TYPE IF EXISTS colour
DROP TYPE IF EXISTS nope.color
DROP TYPE IF EXISTS empty, colour, nope.color
DROP TYPE empty
DROP TYPE integer
DROP TYPE text[]
DROP TYPE color[]
DROP TYPE colour[]
DROP TYPE mood
DROP TYPE "Strange name" RESTRICT
DROP TYPE fits, nothing
DROP TYPE fits
-- schemas
CREATE SCHEMA s
CREATE TYPE s.color AS ENUM ('a')
CREATE TYPE s."Other" AS ENUM ('a')
CREATE TABLE s.t (c s.color DEFAULT 'a')
CREATE TABLE x (c s.color DEFAULT 'b')
CREATE TABLE x (c s."Other" DEFAULT 'b')
DROP TYPE s.color
DROP TYPE s."Other"
DROP SCHEMA s
DROP SCHEMA s CASCADE
CREATE SCHEMA one
CREATE TYPE one.only AS ENUM ('a')
DROP SCHEMA one
DROP SCHEMA one CASCADE
DROP TYPE one.only
-- names of PostgreSQL's own
CREATE TYPE public.date AS ENUM ('a')
CREATE TABLE own (a date, b public.date DEFAULT 'a')
CREATE TABLE x (b public.date DEFAULT 'b')
DROP TABLE own
DROP TYPE date
DROP TYPE public.date
-- names of the types of arrays
CREATE TYPE _color AS ENUM ('x')
CREATE TYPE _a AS ENUM ()
CREATE TYPE a AS ENUM ()
CREATE TYPE _a_1 AS ENUM ()
CREATE TYPE aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa AS ENUM ()
CREATE TYPE éééééééééééééééééééééééééééééée AS ENUM ()
-- rights
CREATE ROLE r
CREATE SCHEMA mine AUTHORIZATION r
SET role r
CREATE TYPE mine.own AS ENUM ('a', 'b')
CREATE TYPE not_mine AS ENUM ('a')
ALTER TYPE public.color ADD VALUE 'not mine'
ALTER TYPE mine.own ADD VALUE 'c'
DROP TYPE color
DROP TYPE integer
SET role none
DROP ROLE r
SET role r
DROP TYPE mine.own
SET role none
DROP SCHEMA mine
DROP ROLE r
DROP TABLE d
