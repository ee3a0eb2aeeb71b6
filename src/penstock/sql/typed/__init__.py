"""Analysis of raw trees to typed ones (analyze.c, parse_*.c): names, types and functions are
found.
"""
