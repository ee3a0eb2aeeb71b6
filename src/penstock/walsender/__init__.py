"""The node as a publisher: the log of what is committed to its tables, and streams of it.

In: the tables' Delta logs. Out: transactions in one order, slots, and what streams send.
``backend`` serves the clients that ask for them over the port.
"""
