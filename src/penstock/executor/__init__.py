"""Statements on tables of the lake (execMain.c, nodeModifyTable.c): SELECT, COPY and changes."""
