"""Run SELECT, COPY and changes on tables of the lake (execMain.c, nodeModifyTable.c)."""
