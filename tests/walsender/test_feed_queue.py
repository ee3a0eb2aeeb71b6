"""What waits for a slow client is bounded by bytes: eight small pieces, or one large row."""

from __future__ import annotations

import queue

import pytest

from penstock.walsender.feed import _PORTIONS, _WAITING_BYTES, Portion, _Waiting


def test_pieces_wait_by_their_bytes() -> None:
    waiting = _Waiting(_PORTIONS)
    large = Portion((), b"x" * (2 * _WAITING_BYTES), 1)
    waiting.put(large, block=False)
    with pytest.raises(queue.Full):
        waiting.put(Portion((), b"", 0), block=False)
    assert waiting.get(block=False) is large
    small = Portion((), b"x", 1)
    for _ in range(_PORTIONS):
        waiting.put(small, block=False)
    with pytest.raises(queue.Full):
        waiting.put(small, block=False)
    for _ in range(_PORTIONS):
        assert waiting.get(block=False) is small
    assert waiting.empty()
