"""``python -m penstock.embedded``: fetch and unpack the servers of all versions (make setup)."""

from __future__ import annotations

import sys

from penstock.embedded.installation import VERSIONS, find_installation
from penstock.errors import PenstockError


def main() -> int:
    """Fetch every version; a version that fails is reported and does not stop the others."""
    missing = 0
    for version in VERSIONS:
        try:
            found = find_installation(version, notice=lambda line: print(line, flush=True))
        except PenstockError as error:
            print(error.report(), file=sys.stderr)
            missing += 1
        else:
            print(f"PostgreSQL {version}: {found.root}")
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
