"""Deletion vectors (protocol: "Deletion Vectors"): the deleted rows of an immutable file.

Bitmaps of row positions become descriptors for add actions, and the content of one file with
several vectors. ``read`` does the reverse, for our own vectors and Spark's. Positions are rows of
one file, so they stay far below 2^32. A vector with a larger position is refused, not truncated.
"""

from __future__ import annotations

import base64
import struct
import uuid
import zlib
from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import unquote

import numpy as np
from numpy.typing import NDArray
from pyroaring import BitMap

from penstock.errors import FeatureNotSupported, StorageError
from penstock.lakehouse.storage import Storage

_PORTABLE: Final = struct.pack("<I", 1681511377)
"""The magic number of RoaringBitmapArray's portable format, little endian."""
_NATIVE: Final = struct.pack(">I", 1681511376)
"""The magic number of its older format, big endian: no keys, but a length before each bitmap."""
_VERSION: Final = b"\x01"
_INLINE: Final = "i"
_UUID_LENGTH: Final = 20
"""Characters of a UUID in Z85."""
_BASE85: Final = (
    b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~"
)
_Z85: Final = (
    b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
)
_TO_Z85: Final = bytes.maketrans(_BASE85, _Z85)
_FROM_Z85: Final = bytes.maketrans(_Z85, _BASE85)

Descriptor = Mapping[str, Any]
"""deletionVector of an add action: storageType, pathOrInlineDv, offset, sizeInBytes, cardinality.
"""


def z85_encode(raw: bytes) -> str:
    """Encode bytes in ZeroMQ's base 85 (RFC 32); their number is a multiple of four."""
    return base64.b85encode(raw).translate(_TO_Z85).decode("ascii")


def z85_decode(text: str) -> bytes:
    """Decode a text of ``z85_encode``. Raises ValueError."""
    return base64.b85decode(text.encode("ascii").translate(_FROM_Z85))


def serialize(bitmap: BitMap) -> bytes:
    """Return a RoaringBitmapArray of one 32-bit bitmap under key 0."""
    compact = bitmap.copy()
    compact.run_optimize()
    return _PORTABLE + struct.pack("<QI", 1, 0) + bytes(compact.serialize())


def deserialize(blob: bytes) -> BitMap:
    """Return the positions in a RoaringBitmapArray. Raises FeatureNotSupported for positions of
    2^32 and beyond, and for an unknown format."""
    if blob.startswith(_PORTABLE):
        (count,), start = struct.unpack_from("<Q", blob, 4), 16
        (key,) = struct.unpack_from("<I", blob, 12) if count else (0,)
    elif blob.startswith(_NATIVE):
        (count,), key, start = struct.unpack_from(">i", blob, 4), 0, 12
    else:
        raise FeatureNotSupported(f"deletion vector has an unknown format ({blob[:4].hex()})")
    if count == 0:
        return BitMap()
    if key or count > 1:
        raise FeatureNotSupported(
            "deletion vector has row positions beyond 4294967295",
            hint="Compact the table with OPTIMIZE; its files then have fewer rows.",
        )
    return BitMap.deserialize(blob[start:])


@dataclass
class VectorFile:
    """A new file of several vectors: ``add`` each, then write ``content``."""

    id: uuid.UUID = field(default_factory=uuid.uuid4)
    content: bytearray = field(default_factory=lambda: bytearray(_VERSION))

    @property
    def name(self) -> str:
        """The file's name in the table's folder."""
        return f"deletion_vector_{self.id}.bin"

    @property
    def empty(self) -> bool:
        """Return whether there is nothing to write."""
        return len(self.content) == len(_VERSION)

    def add(self, bitmap: BitMap) -> dict[str, Any]:
        """Append a vector: size (big endian), blob, CRC-32. Return its descriptor."""
        blob, offset = serialize(bitmap), len(self.content)
        self.content += struct.pack(">i", len(blob)) + blob + struct.pack(">I", zlib.crc32(blob))
        return {
            "storageType": "u",
            "pathOrInlineDv": z85_encode(self.id.bytes),
            "offset": offset,
            "sizeInBytes": len(blob),
            "cardinality": len(bitmap),
        }


def inline(bitmap: BitMap) -> Descriptor:
    """Return a descriptor that holds the vector itself."""
    blob = serialize(bitmap)
    return {
        "storageType": _INLINE,
        "pathOrInlineDv": z85_encode(blob + bytes(-len(blob) % 4)),
        "sizeInBytes": len(blob),
        "cardinality": len(bitmap),
    }


def of_inline(descriptor: Descriptor) -> BitMap:
    """Return the vector in a descriptor of ``inline``."""
    return deserialize(_inline_blob(descriptor))


def _inline_blob(descriptor: Descriptor) -> bytes:
    return z85_decode(descriptor["pathOrInlineDv"])[: descriptor["sizeInBytes"]]


def read(storage: Storage, table_uri: str, descriptor: Descriptor) -> BitMap:
    """Return the positions of a descriptor's vector. Raises StorageError if size, CRC or
    cardinality do not match."""
    if descriptor["storageType"] == _INLINE:
        blob = _inline_blob(descriptor)
        where = "inline"
    else:
        where = vector_uri(table_uri, descriptor)
        blob = _read_blob(storage, where, descriptor)
    positions = deserialize(blob)
    if len(positions) != descriptor["cardinality"]:
        raise _corrupt(where, "its cardinality is not the one in the log")
    return positions


def vector_uri(table_uri: str, descriptor: Descriptor) -> str:
    """Return the URI of a descriptor's file: "u" is relative, a UUID after an optional prefix; "p"
    is absolute, a URL and so percent-encoded. Raises FeatureNotSupported for other kinds.
    """
    text = str(descriptor["pathOrInlineDv"])
    if descriptor["storageType"] == "p":
        return unquote(text)
    if descriptor["storageType"] != "u":
        raise FeatureNotSupported(
            f'deletion vector has an unknown storage type "{descriptor["storageType"]}"'
        )
    prefix, encoded = text[:-_UUID_LENGTH], text[-_UUID_LENGTH:]
    name = f"deletion_vector_{uuid.UUID(bytes=z85_decode(encoded))}.bin"
    return f"{table_uri}/{prefix}/{name}" if prefix else f"{table_uri}/{name}"


def unique_id(descriptor: Descriptor | None) -> str:
    """Return the vector's part of a logical file's identity (protocol: "Add File")."""
    if descriptor is None:
        return ""
    base = f"{descriptor['storageType']}{descriptor['pathOrInlineDv']}"
    offset = descriptor.get("offset")
    return base if offset is None else f"{base}@{offset}"


def _read_blob(storage: Storage, uri: str, descriptor: Descriptor) -> bytes:
    size = int(descriptor["sizeInBytes"])
    raw = storage.read(uri, int(descriptor.get("offset") or 0), size + 8)
    if len(raw) != size + 8 or struct.unpack_from(">i", raw)[0] != size:
        raise _corrupt(uri, "its size is not the one in the log")
    blob = raw[4:-4]
    if struct.unpack_from(">I", raw, size + 4)[0] != zlib.crc32(blob):
        raise _corrupt(uri, "its checksum is wrong")
    return blob


def _corrupt(uri: str, why: str) -> StorageError:
    return StorageError(
        f'invalid deletion vector in "{uri}": {why}',
        hint="The file is damaged: put it back from a copy.",
        sqlstate="XX001",
    )


# Conversion of row positions between bitmaps and arrays. ``BitMap(numbers)`` and
# ``np.array(bitmap)`` make a Python integer for each row, which takes longer than everything else
# that a batch does with the positions.

_UNSIGNED_32: Final = "I"


def bitmap_of(numbers: NDArray[np.integer]) -> BitMap:
    """Return the bitmap of numbers from 0 to 2**32 - 1, in any order."""
    held = array(_UNSIGNED_32)
    held.frombytes(numbers.astype(np.uint32).tobytes())
    return BitMap(held)


def numbers_of(bitmap: BitMap) -> NDArray[np.int64]:
    """Return the numbers in a bitmap, ascending."""
    return np.frombuffer(bitmap.to_array(), np.uint32).astype(np.int64)
