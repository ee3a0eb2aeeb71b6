"""The node as a publisher: one log of its tables' commits, and streams of this log.

This room puts the commits of the tables' Delta logs into one order of transactions, keeps slots,
and sends streams. ``backend`` serves the clients of the port.
"""
