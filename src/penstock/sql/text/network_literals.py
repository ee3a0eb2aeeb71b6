"""Network addresses in literals (network.c, inet_net_pton.c, mac.c).

In: a literal's text. Out: what inet_out, cidr_out and macaddr_out print.
"""

from __future__ import annotations

import ipaddress
import re
from typing import Final

from penstock.errors import FeatureNotSupported
from penstock.sql.text.number_literals import invalid
from penstock.sqlstate import InvalidTextRepresentation, NumericValueOutOfRange

_PARTS: Final = re.compile(r"([0-9a-fA-F:.]+)(?:/(\d{1,3}))?", re.ASCII)
_MAC: Final = (
    *(re.compile(rf"\s*{sep.join([r'([0-9a-fA-F]+)'] * 6)}\s*", re.ASCII) for sep in ":-"),
    *(
        re.compile(rf"\s*{sep.join([r'([0-9a-fA-F]{2})' * of] * (6 // of))}\s*", re.ASCII)
        for sep, of in ((":", 3), ("-", 3), (r"\.", 2), ("-", 2), ("", 6))
    ),
)
_OCTET: Final = 255
_SHORT: Final = re.compile(r"(?!\d*\.\d*\.\d*\.\d*(?:/|\Z))(?:[0-9.]+|0[xX][0-9a-fA-F]+)(?:/\d+)?")
"""Addresses of IPv4 that lack some of their four numbers, or are written otherwise."""


def read_inet(text: str) -> str:
    """Raises 22P02, FeatureNotSupported for addresses that are not written whole."""
    if _SHORT.fullmatch(text) and "/" in text:
        raise FeatureNotSupported(f'"{text}" is not supported as an inet')
    address, bits = _address(text, "inet")
    return str_of(address) if bits == address.max_prefixlen else f"{str_of(address)}/{bits}"


def read_cidr(text: str) -> str:
    """Raises 22P02, FeatureNotSupported for addresses that are not written whole."""
    if _SHORT.fullmatch(text):
        raise FeatureNotSupported(f'"{text}" is not supported as a cidr')
    address, bits = _address(text, "cidr")
    if int(address) & ((1 << address.max_prefixlen - bits) - 1):
        raise InvalidTextRepresentation(
            f'invalid cidr value: "{text}"', detail="Value has bits set to right of mask."
        )
    return f"{str_of(address)}/{bits}"


def _address(text: str, name: str) -> tuple[ipaddress.IPv4Address | ipaddress.IPv6Address, int]:
    match = _PARTS.fullmatch(text)
    if match is None:
        raise invalid(name, text)
    try:
        address = ipaddress.ip_address(_without_zeros(match[1]))
    except ValueError:
        raise invalid(name, text) from None
    bits = address.max_prefixlen if match[2] is None else int(match[2])
    if bits > address.max_prefixlen:
        raise invalid(name, text)
    return address, bits


def _without_zeros(address: str) -> str:
    """inet_net_pton reads 010 as 10, which Python refuses."""
    if ":" in address:
        return address
    return ".".join(part.lstrip("0") or part[:1] for part in address.split("."))


def str_of(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> str:
    """inet_net_ntop: IPv6 addresses that hold one of IPv4 show it."""
    if address.version == 6 and (mapped := _embedded(address)):
        return mapped
    return str(address)


def _embedded(address: ipaddress.IPv6Address) -> str | None:
    groups = [int(address) >> 16 * (7 - n) & 0xFFFF for n in range(8)]
    quad = str(ipaddress.IPv4Address(int(address) & 0xFFFFFFFF))
    if any(groups[:5]):
        return None
    if groups[5] == 0xFFFF:
        return f"::ffff:{quad}"
    if groups[5] == 0 and groups[6] != 0:
        return f"::{quad}"
    return None


def read_macaddr(text: str) -> str:
    """Raises 22P02, 22003, FeatureNotSupported for forms that are not read here."""
    for form in _MAC:
        if match := form.fullmatch(text):
            parts = [int(part, 16) for part in match.groups()]
            if max(parts) > _OCTET:
                raise NumericValueOutOfRange(f'invalid octet value in "macaddr" value: "{text}"')
            return ":".join(f"{part:02x}" for part in parts)
    if re.fullmatch(r"[-+:.0-9a-fA-FxX\s]+", text):  # sscanf reads more forms of digits
        raise FeatureNotSupported(f'"{text}" is not supported as a macaddr')
    raise invalid("macaddr", text)
