"""The node as a publisher: the log of its tables' commits, and streams of it.

This room puts the commits of the tables' Delta logs into one order of transactions, keeps slots,
and sends streams. ``backend`` serves the clients of the port.
"""
