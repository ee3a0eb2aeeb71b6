"""wal2json's own output, recorded on a server, is ours, byte for byte.

With ``PENSTOCK_WAL2JSON`` (``wal2json_golden``) another history is compared with it live. Of
transactions without changes pgoutput does not tell.
"""

from __future__ import annotations

import json
import lzma
import os
import re
from typing import Any

import pytest

from decoding.pgoutput_source import PgoutputSource
from decoding.values import texts
from decoding.wal2json_golden import GOLDEN, record
from penstock.decoding import OutputReader, RelationData, find_plugin
from penstock.lsn import Lsn
from penstock.pgoutput import messages as m
from penstock.pgoutput.decoder import Decoder

_EMPTY = re.compile(r'\{\s*("[a-z]+":\s*("[^"]*"|\d+),\s*)*"change":\s*\[\s*\]\s*\}')


class _Source(PgoutputSource):
    """Knows of columns what pgoutput does not tell."""

    def __init__(self, recorded: dict[str, Any]) -> None:
        self._own = dict(recorded["types"])
        self._columns_of = recorded["columns"]
        super().__init__(Decoder(1), self._own)

    def _change(self, lsn: Lsn, message: m.Message) -> None:
        super()._change(lsn, message)
        if isinstance(message, m.RelationMessage):
            relation = message.relation
            mine = [column[1:] for column in self._columns_of if column[0] == relation.oid]
            self._relations[relation.oid] = RelationData.of(
                relation,
                type_names=self._own,
                not_null={name for name, _, not_null, _ in mine if not_null},
                primary_key={name for name, _, _, primary in mine if primary},
                positions={name: number for name, number, _, _ in mine},
            )


def _without_empty(written: list[str]) -> list[str]:
    kept: list[str] = []
    for text in written:
        ends = text.startswith('{"action":"C"') or re.fullmatch(r"\s*\]\s*\}", text)
        begins = bool(kept) and (
            kept[-1].startswith('{"action":"B"') or re.search(r'"change":\s*\[$', kept[-1])
        )
        if ends and begins:
            kept.pop()
        elif not _EMPTY.fullmatch(text):
            kept.append(text)
    return kept


def _compare(recorded: dict[str, Any]) -> None:
    rows = [(Lsn.parse(lsn), xid, bytes.fromhex(data)) for lsn, xid, data in recorded["rows"]]
    for options, written in recorded["written"]:
        items = list(_Source(recorded).items(rows))
        plugin = find_plugin("wal2json")
        silent = OutputReader(warn=lambda _: None)
        got = texts(plugin, items, options=list(options.items()), reader=silent)
        mine, wanted = _without_empty(list(map(str, got))), _without_empty(written)
        for number, (one, other) in enumerate(zip(mine, wanted, strict=False)):
            assert one == other, f"{options}, {number}"
        assert len(mine) == len(wanted), options


def test_as_recorded() -> None:
    _compare(json.loads(lzma.decompress(GOLDEN.read_bytes())))


@pytest.mark.postgres
@pytest.mark.skipif("PENSTOCK_WAL2JSON" not in os.environ, reason="there is no wal2json")
@pytest.mark.parametrize("seed", range(3))
def test_as_it_writes_now(seed: int) -> None:
    _compare(json.loads(json.dumps(record(seed, 100))))
