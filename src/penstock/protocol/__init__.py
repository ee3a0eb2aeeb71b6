"""PostgreSQL's frontend/backend protocol: bytes in, values out, and back; no sockets.

In: a client's bytes. Out: its messages, and the bytes that answer them. ``session`` is the state
machine of one connection; ``startup`` and ``scram`` are how it begins; ``backend_messages`` and
``copy_columns`` are what a query answers; ``replication_grammar``, ``slot_options`` and
``copy_both`` are a walsender's. What a statement means, and who may run it, is left to
``penstock.backend``.
"""
