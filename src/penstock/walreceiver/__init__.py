"""The replication client: connect to a publisher, query it, create slots, stream, give feedback.

Each name lives in the file of its concept; upper rooms import from there.
"""
