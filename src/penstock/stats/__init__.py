"""The node in numbers: what it reports, and how Prometheus reads it."""
