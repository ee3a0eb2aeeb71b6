"""The sessions and workers of a node, as pg_stat_activity shows them."""
