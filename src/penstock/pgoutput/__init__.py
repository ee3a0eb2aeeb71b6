"""The output plugin's messages (logical replication protocol 1 to 4), as values and as columns.

``messages`` has the values; ``decoder`` and ``encoder`` convert them from and to bytes one by one.
``columnar`` decodes runs of changes to Arrow columns. ``options`` has the plugin's options of
START_REPLICATION.
"""
