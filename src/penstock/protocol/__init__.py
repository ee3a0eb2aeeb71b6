"""PostgreSQL's frontend/backend protocol: bytes in, values out, and back; no sockets.

In: a client's bytes. Out: its messages, and the bytes that answer them. ``session`` is the state
machine of one connection. ``startup`` and ``scram`` begin it; ``backend_messages`` and
``copy_columns`` answer queries; ``replication_grammar`` and ``copy_both`` serve a walsender.
``penstock.backend`` knows what a statement means, and who may run it.
"""
