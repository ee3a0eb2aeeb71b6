"""Analysis of raw trees to typed ones (analyze.c, parse_*.c): it finds names, types and
functions."""
