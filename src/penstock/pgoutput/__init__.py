"""The output plugin's messages (logical replication protocol 1 to 4), to values and to columns.

Nothing is exported here: ``messages`` has the values, ``decoder`` and ``encoder`` go between them
and bytes one by one, ``columnar`` decodes runs of changes to Arrow columns, ``options`` is what
START_REPLICATION asks the plugin for.
"""
