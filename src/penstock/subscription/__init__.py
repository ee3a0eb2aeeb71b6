"""The subscribing side: workers that copy tables and apply the change stream (worker.c,
tablesync.c).

The node passes a subscription from the catalog, a publisher's connection, a Spark session and a
warehouse. The workers fill Delta tables that follow the publisher, make cuts, and acknowledge LSNs.
``penstock.commands`` executes statements. ``launcher`` starts the workers, and ``penstock.node``
drives it.
"""
