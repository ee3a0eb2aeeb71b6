"""Deletion vectors: the format's examples, round trips, damage."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap

from penstock.errors import FeatureNotSupported, StorageError
from penstock.lakehouse.deletion_vectors import (
    VectorFile,
    deserialize,
    read,
    serialize,
    unique_id,
    vector_uri,
    z85_decode,
    z85_encode,
)
from penstock.lakehouse.storage import Storage

POSITIONS = st.sets(st.integers(0, 2**32 - 1), max_size=50) | st.builds(
    lambda start, length: set(range(start, start + length)),
    st.integers(0, 2**31),
    st.integers(0, 70_000),
)


def test_z85_of_the_specification() -> None:
    assert z85_encode(bytes.fromhex("864fd26fb559f75b")) == "HelloWorld"  # ZeroMQ RFC 32


@given(st.binary(min_size=16, max_size=16))
def test_z85_round_trip(raw: bytes) -> None:
    assert z85_decode(z85_encode(raw)) == raw


def test_inline_vector_of_the_protocol(tmp_path: Path) -> None:
    """The example of "Deletion Vector Descriptor Schema", which is in the older format."""
    descriptor = {
        "storageType": "i",
        "pathOrInlineDv": "wi5b=000010000siXQKl0rr91000f55c8Xg0@@D72lkbi5=-{L",
        "sizeInBytes": 40,
        "cardinality": 6,
    }
    assert read(Storage(str(tmp_path)), "", descriptor) == BitMap([3, 4, 7, 11, 18, 29])


def test_paths_of_the_protocol() -> None:
    base = {"storageType": "u", "pathOrInlineDv": "ab^-aqEH.-t@S}K{vb[*k^"}
    assert vector_uri("s3://b/t", base) == (
        "s3://b/t/ab/deletion_vector_d2c639aa-8816-431a-aaf6-d3fe2512ff61.bin"
    )
    absolute = {"storageType": "p", "pathOrInlineDv": "s3://c/v.bin", "offset": 4}
    assert vector_uri("s3://b/t", absolute) == "s3://c/v.bin"
    assert unique_id(absolute) == "ps3://c/v.bin@4"


@given(st.lists(POSITIONS, min_size=1, max_size=4))
def test_several_vectors_in_one_file(
    tmp_path_factory: pytest.TempPathFactory, sets: list[Any]
) -> None:
    folder = tmp_path_factory.mktemp("vectors")
    storage = Storage(str(folder), fsync=False)
    file = VectorFile()
    descriptors = [file.add(BitMap(positions)) for positions in sets]
    storage.write(f"{storage.uri}/{file.name}", bytes(file.content))
    for descriptor, positions in zip(descriptors, sets, strict=True):
        assert set(read(storage, storage.uri, descriptor)) == positions


def test_damage_is_found(tmp_path: Path) -> None:
    storage = Storage(str(tmp_path), fsync=False)
    file = VectorFile()
    descriptor = file.add(BitMap([1, 2, 70_000]))
    path = tmp_path / file.name
    for at in (1, 10, len(file.content) - 1):
        damaged = bytearray(file.content)
        damaged[at] ^= 1
        path.write_bytes(damaged)
        with pytest.raises(StorageError) as caught:
            read(storage, storage.uri, descriptor)
        assert caught.value.sqlstate == "XX001"
    path.write_bytes(file.content[:-3])
    with pytest.raises(StorageError):
        read(storage, storage.uri, descriptor)
    path.write_bytes(file.content)
    with pytest.raises(StorageError, match="cardinality"):
        read(storage, storage.uri, {**descriptor, "cardinality": 2})


def test_positions_beyond_32_bits_are_refused() -> None:
    far = struct.pack("<IQI", 1681511377, 1, 1) + bytes(BitMap([0]).serialize())
    with pytest.raises(FeatureNotSupported, match="4294967295"):
        deserialize(far)
    two = serialize(BitMap([1])) + struct.pack("<I", 1) + bytes(BitMap([0]).serialize())
    two = two[:4] + struct.pack("<Q", 2) + two[12:]
    with pytest.raises(FeatureNotSupported, match="4294967295"):
        deserialize(two)
    with pytest.raises(FeatureNotSupported, match="4294967295"):
        deserialize(struct.pack(">II", 1681511376, 2))
    with pytest.raises(FeatureNotSupported, match="format"):
        deserialize(struct.pack("<IQ", 1681511375, 0))


def test_absolute_paths_are_urls(tmp_path: Path) -> None:
    folder = tmp_path / "a b%25é"
    folder.mkdir()
    vectors = VectorFile()
    descriptor = vectors.add(BitMap([3, 5]))
    (folder / "vectors 1.bin").write_bytes(vectors.content)
    url = (folder / "vectors 1.bin").as_uri()
    assert "%20" in url and "%2525" in url
    for path in (url, url.replace("file:///", "file:/")):
        absolute = {**descriptor, "storageType": "p", "pathOrInlineDv": path}
        assert read(Storage(str(tmp_path)), str(tmp_path / "elsewhere"), absolute) == BitMap([3, 5])
    with pytest.raises(FeatureNotSupported, match='"x"'):
        vector_uri("t", {**descriptor, "storageType": "x"})
