"""The node as a publisher: sessions of clients that speak PostgreSQL's protocol.

In: connections. Out: answers to SQL, copies and change streams. ``server`` listens, ``backend`` is
one client's session; statements are run by what ``node`` passes in.
"""
