"""Client encodings: the text of messages to bytes and back (mbutils.c, encnames.c).

The node itself uses UTF8. The startup packet or SET choose a client's encoding.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from penstock.errors import InvalidParameterValue, ProtocolViolation, ValueNotRepresentable

_PYTHON_CODECS: Final = {
    "UTF8": "utf-8",
    # The server checks such a client's text as its own encoding, which is UTF8.
    "SQL_ASCII": "utf-8",
    "LATIN1": "iso8859-1",
    "LATIN2": "iso8859-2",
    "LATIN3": "iso8859-3",
    "LATIN4": "iso8859-4",
    "LATIN5": "iso8859-9",
    "LATIN6": "iso8859-10",
    "LATIN7": "iso8859-13",
    "LATIN8": "iso8859-14",
    "LATIN9": "iso8859-15",
    "LATIN10": "iso8859-16",
    "ISO_8859_5": "iso8859-5",
    "ISO_8859_6": "iso8859-6",
    "ISO_8859_7": "iso8859-7",
    "ISO_8859_8": "iso8859-8",
    "WIN1250": "cp1250",
    "WIN1251": "cp1251",
    "WIN1252": "cp1252",
    "WIN1253": "cp1253",
    "WIN1254": "cp1254",
    "WIN1255": "cp1255",
    "WIN1256": "cp1256",
    "WIN1257": "cp1257",
    "WIN1258": "cp1258",
    "KOI8R": "koi8-r",
    "KOI8U": "koi8-u",
}
_ALIASES: Final = {
    "unicode": "UTF8",
    "iso88591": "LATIN1",
    "iso88592": "LATIN2",
    "iso88593": "LATIN3",
    "iso88594": "LATIN4",
    "iso88599": "LATIN5",
    "iso885910": "LATIN6",
    "iso885913": "LATIN7",
    "iso885914": "LATIN8",
    "iso885915": "LATIN9",
    "iso885916": "LATIN10",
    "koi8": "KOI8R",
    "win": "WIN1251",
    "windows1250": "WIN1250",
    "windows1251": "WIN1251",
    "windows1252": "WIN1252",
    "windows1253": "WIN1253",
    "windows1254": "WIN1254",
    "windows1255": "WIN1255",
    "windows1256": "WIN1256",
    "windows1257": "WIN1257",
    "windows1258": "WIN1258",
}
_SHOWN_BYTES: Final = 8  # report_invalid_encoding shows no more


@dataclass(frozen=True, slots=True)
class ClientEncoding:
    """An encoding. ``name``: PostgreSQL's; ``codec``: Python's."""

    name: str
    codec: str

    def decode(self, raw: bytes) -> str:
        """Decode bytes. Raises ProtocolViolation (22021) with the first bytes that are invalid."""
        try:
            return raw.decode(self.codec)
        except UnicodeDecodeError as error:
            wrong = raw[error.start : error.start + self._character_length(raw[error.start])]
            raise ProtocolViolation(
                f'invalid byte sequence for encoding "{_reported(self)}": {_hex(wrong)}',
                sqlstate="22021",
            ) from None

    def encode(self, text: str) -> bytes:
        """Encode a text. Raises ValueNotRepresentable (22P05) for an unknown character."""
        try:
            return text.encode(self.codec)
        except UnicodeEncodeError as error:
            wrong = text[error.start].encode("utf-8", "surrogatepass")
            raise ValueNotRepresentable(
                f'character with byte sequence {_hex(wrong)} in encoding "UTF8"'
                f' has no equivalent in encoding "{self.name}"',
                sqlstate="22P05",
            ) from None

    def encode_lossy(self, text: str) -> bytes:
        """Encode an error's text; never fails: an unknown character becomes ``?``."""
        return text.encode(self.codec, "replace")

    def _character_length(self, lead: int) -> int:
        """Return the length of a character by its lead byte (pg_utf_mblen)."""
        if self.codec != "utf-8" or lead < 0xC0 or lead >= 0xF8:
            return 1
        return 2 if lead < 0xE0 else 3 if lead < 0xF0 else 4


def find_encoding(name: str) -> ClientEncoding:
    """Return the encoding of that name, in any spelling (pg_char_to_encoding).

    Raises InvalidParameterValue as SET client_encoding does.
    """
    cleaned = "".join(c for c in name.lower() if c.isascii() and c.isalnum())
    known = _BY_CLEANED_NAME.get(cleaned)
    if known is None:
        raise InvalidParameterValue(f'invalid value for parameter "client_encoding": "{name}"')
    return known


def _reported(encoding: ClientEncoding) -> str:
    return "UTF8" if encoding.codec == "utf-8" else encoding.name


def _hex(raw: bytes) -> str:
    return " ".join(f"0x{byte:02x}" for byte in raw[:_SHOWN_BYTES])


_BY_CLEANED_NAME: Final = {
    name.lower().replace("_", ""): ClientEncoding(name, codec)
    for name, codec in _PYTHON_CODECS.items()
}
_BY_CLEANED_NAME.update(
    {alias: _BY_CLEANED_NAME[name.lower().replace("_", "")] for alias, name in _ALIASES.items()}
)
UTF8: Final = find_encoding("UTF8")
