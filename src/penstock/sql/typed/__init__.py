"""Analysis of raw trees to typed ones (analyze.c, parse_*.c): finds names, types and functions."""
