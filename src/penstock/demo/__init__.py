"""The demonstration: a shop in PostgreSQL, followed live into Delta tables through a crash.

``make demo`` runs it; it can also follow a publication of the user's own database. It shows its
steps on the terminal; its exit status says whether every table was equal in the end.
"""
