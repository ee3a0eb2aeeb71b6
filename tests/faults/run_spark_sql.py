"""A program beside the node: one statement in a Spark session of its own, with Delta."""

from __future__ import annotations

import sys

from penstock.lakehouse.session import build_session

if __name__ == "__main__":
    session = build_session(master="local[1]", driver_memory="512m", conf={}, app_name="beside")
    session.sql(sys.argv[1]).collect()
    session.stop()
