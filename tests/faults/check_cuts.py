"""Every cut of a warehouse, read as a reader without Penstock would (delta-rs), and checked.

In: a warehouse (folder or URI), a subscription's name. Out: how many cuts were checked; a failure
that names the cut's LSN, the versions it pins and what is wrong there. Cuts are checked once, in
order.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Final

from deltalake import DeltaTable

from end_to_end.compare import query
from faults.invariants import Digest, as_digest, digest_sql, violations

_CUTS: Final = """
SELECT cut_time, lsn, table_name, uri, version FROM cuts
WHERE subscription = '{subscription}' AND lsn >= {since} ORDER BY cut_time, table_name
"""


@dataclass
class Cut:
    """``at``: cut_time, which tells cuts apart, as a table may join at an LSN that has a cut.
    ``tables``: name -> (uri, version). ``read``: whether its tables are.
    """

    at: datetime
    lsn: int
    tables: dict[str, tuple[str, int]] = field(default_factory=dict)
    read: bool = True


class CutChecker:
    """Remembers which cuts it has seen. ``every``: so many cuts have one among them that is read;
    the newest always is."""

    def __init__(self, warehouse: Path | str, subscription: str, every: int = 1) -> None:
        self.checked = 0
        self._every = every
        self._uri = f"{warehouse}/_penstock/cuts"
        self._subscription = subscription
        self._seen: Cut | None = None
        self._transfers = 0
        self._digests: dict[tuple[str, int], Digest] = {}

    def last(self) -> Cut | None:
        """The newest cut, or None before the first."""
        cuts = self._since(self.last_lsn())
        return cuts[-1] if cuts else None

    def last_lsn(self) -> int:
        """LSN of the newest cut; -1 before the first."""
        if not self._exists():
            return -1
        found = query(
            f"SELECT max(lsn) AS lsn FROM cuts WHERE subscription = '{self._subscription}'",
            cuts=DeltaTable(self._uri),
        )
        newest = found["lsn"][0].as_py()
        return -1 if newest is None else int(newest)

    def check_new(self) -> int:
        """Check all cuts since the last call; returns their number."""
        before = self.checked
        cuts = self._since(-1 if self._seen is None else self._seen.lsn)
        for number, cut in enumerate(reversed(cuts)):
            cut.read = number % self._every == 0
        for cut in cuts:
            if self._seen is not None:
                if cut.at <= self._seen.at:
                    continue
                assert cut.lsn >= self._seen.lsn, f"a cut at {cut.lsn} follows {self._seen}"
            if cut.read:
                self._check(cut)
                self.checked += 1
            self._seen = cut
        return self.checked - before

    def _check(self, cut: Cut) -> None:
        digests = {name: self._digest(name, *pin) for name, pin in cut.tables.items()}
        wrong = violations(digests)
        if "transfers" in digests:
            if digests["transfers"]["n"] < self._transfers:
                wrong.append(f"{self._transfers} transfers became {digests['transfers']['n']}")
            self._transfers = digests["transfers"]["n"]
        assert not wrong, (
            f"cut at {cut.lsn >> 32:X}/{cut.lsn & 0xFFFFFFFF:X} is broken: {'; '.join(wrong)}\n"
            f"versions: { ({name: version for name, (_, version) in cut.tables.items()}) }"
        )
        self._digests = {pin: self._digests[pin] for pin in cut.tables.values()}

    def _digest(self, name: str, uri: str, version: int) -> Digest:
        if (uri, version) not in self._digests:
            found = query(digest_sql(name), **{name: DeltaTable(uri, version=version)})
            rows = list(zip(*(column.to_pylist() for column in found.columns), strict=True))
            self._digests[uri, version] = as_digest(name, found.column_names, rows)
        return self._digests[uri, version]

    def _since(self, lsn: int) -> list[Cut]:
        if not self._exists():
            return []
        statement = _CUTS.format(subscription=self._subscription, since=lsn)
        cuts: dict[datetime, Cut] = {}
        for row in query(statement, cuts=DeltaTable(self._uri)).to_pylist():
            cut = cuts.setdefault(row["cut_time"], Cut(row["cut_time"], row["lsn"]))
            assert row["table_name"] not in cut.tables, f"two rows of a table in the {cut}"
            assert row["lsn"] == cut.lsn
            if row["uri"] is not None:  # else a cut from before the first table was ready
                cut.tables[row["table_name"]] = (row["uri"], row["version"])
        return list(cuts.values())

    def _exists(self) -> bool:
        return DeltaTable.is_deltatable(self._uri)
