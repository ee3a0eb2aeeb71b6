"""The subscribing side: workers that copy tables and apply the change stream (worker.c,
tablesync.c).

In: a subscription from the catalog, a publisher's connection, a Spark session, a warehouse. Out:
Delta tables that follow the publisher, cuts, and the LSN to acknowledge. What a statement changes
is left to ``penstock.commands``; who starts workers is ``launcher``, which ``penstock.node``
drives.
"""
