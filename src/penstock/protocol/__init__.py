"""PostgreSQL's frontend/backend protocol: bytes in, values out, and back; no sockets.

A client's bytes become messages, and answers become bytes. ``session`` is the state machine of one
connection. ``startup`` and ``scram`` begin it; ``backend_messages`` and ``copy_columns`` answer
queries; ``replication_grammar`` and ``copy_both`` serve a walsender. ``penstock.backend`` runs
statements and checks rights.
"""
