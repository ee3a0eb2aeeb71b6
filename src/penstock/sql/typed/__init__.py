"""Turn raw trees into typed trees: look up names, types and functions (analyze.c, parse_*.c)."""
