"""Names, literals and quoting as PostgreSQL reads and prints them (quote.c, arrayfuncs.c)."""
