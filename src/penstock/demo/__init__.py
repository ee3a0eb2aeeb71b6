"""The demonstration: a shop in PostgreSQL, followed live into Delta tables through a crash.

In: nothing, or a publication of the user's own database. Out: a story on the terminal, and an exit
status that tells whether every table was equal in the end. ``make demo`` runs it.
"""
