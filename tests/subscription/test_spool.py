"""Spool files: they give back what was written, or say that they are damaged."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.errors import StorageError
from penstock.pgoutput.columnar import MessageChunk
from penstock.subscription.spool import SpooledFrames, SpooledMessages

_FRAMES = [b"w" + bytes(range(size)) for size in (30, 0, 200, 25)]


def _frames(folder: Path) -> tuple[Path, Callable[[], object]]:
    spooled = SpooledFrames.write(folder, _FRAMES)
    assert spooled.load() == _FRAMES
    return spooled.path, spooled.load


def _messages(folder: Path) -> tuple[Path, Callable[[], object]]:
    chunk = MessageChunk.from_copy_data([frame for frame in _FRAMES if len(frame) > 25])
    spooled = SpooledMessages.write(folder, chunk)
    read = spooled.chunk()
    assert (read.buffer, list(read.starts)) == (chunk.buffer, list(chunk.starts))
    return spooled.path, spooled.chunk


@pytest.mark.parametrize("write", [_frames, _messages])
def test_any_damage_is_noticed(
    tmp_path: Path, write: Callable[[Path], tuple[Path, Callable[[], object]]]
) -> None:
    path, read = write(tmp_path)
    whole = path.read_bytes()
    changed = [whole[:at] + bytes([whole[at] ^ 4]) + whole[at + 1 :] for at in range(len(whole))]
    for damaged in (*changed, *(whole[:length] for length in range(len(whole))), whole + b"x"):
        if write is _frames and damaged == whole[:-8]:  # nothing but the checksum is missing
            continue
        path.write_bytes(damaged)
        with pytest.raises(StorageError, match="is damaged") as caught:
            read()
        assert (caught.value.sqlstate, str(path) in caught.value.message) == ("XX001", True)
    path.write_bytes(whole)
    read()


def test_what_is_sealed_for_a_place_is_of_no_other(tmp_path: Path) -> None:
    sealed = SpooledFrames.write(tmp_path, _FRAMES).sealed("700/1")
    back = SpooledFrames.of_sealed(tmp_path, sealed, "700/1", len(_FRAMES))
    assert back is not None and back.load() == _FRAMES
    assert SpooledFrames.of_sealed(tmp_path, sealed, "700/2", len(_FRAMES)) is None
    changed = [
        sealed[:at] + bytes([sealed[at] ^ 4]) + sealed[at + 1 :] for at in range(len(sealed))
    ]
    for damaged in (*changed, *(sealed[:length] for length in range(len(sealed) - 8))):
        found = SpooledFrames.of_sealed(tmp_path, damaged, "700/1", len(_FRAMES))
        if found is not None:
            with pytest.raises(StorageError, match="is damaged"):
                found.load()


def test_a_damaged_run_is_not_sealed(tmp_path: Path) -> None:
    spooled = SpooledFrames.write(tmp_path, _FRAMES)
    content = bytearray(spooled.path.read_bytes())
    content[40] ^= 1
    spooled.path.write_bytes(content)
    with pytest.raises(StorageError, match="is damaged"):
        spooled.sealed("700/1")


def test_files_without_a_checksum_are_read(tmp_path: Path) -> None:
    """Those of prepared transactions that an earlier version has left in the warehouse."""
    content = SpooledFrames.write(tmp_path, _FRAMES).path.read_bytes()
    former = SpooledFrames.of_sealed(tmp_path, content[:-8], "700/1", len(_FRAMES))
    assert former is not None and former.load() == _FRAMES
