"""What do proxies that are trusted say of a request's caller? Its address, scheme, host and prefix.

The address is the right-most of `X-Forwarded-For` that is no such proxy's, at most `HOPS` back, as
HAProxy's rules have it (`control/ingress/haproxy_rules.py`). `Forwarded` counts where there is no
`X-Forwarded-For`: a proxy that writes the one leaves the other as its caller wrote it. A word that
is no address ends the search: the caller may have written what stands before it. So does a quote
that a caller left open, before what proxies added to its line; nothing is read twice for it.
Source: RFC 7239 §4, §5, §6.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from ipaddress import ip_address

Headers = list[tuple[bytes, bytes]]
HOPS = 4  # of trusted proxies, one behind the other
FOR, PROTO, HOST = b"x-forwarded-for", b"x-forwarded-proto", b"x-forwarded-host"
PREFIX, FORWARDED = b"x-forwarded-prefix", b"forwarded"
NAMES = frozenset({FOR, PROTO, HOST, PREFIX, FORWARDED})
_ELEMENT = re.compile(r'(?:[^",]|"[^"]*")+')
_PAIR = re.compile(r'\s*([A-Za-z]+)=(?:"([^"]*)"|([^\s";,]*))\s*(?:;|$)')
_NODE = re.compile(r"\[([0-9A-Fa-f:.]+)\](?::[0-9_a-zA-Z.-]+)?|([0-9.]+)(?::[0-9_a-zA-Z.-]+)?")


def from_untrusted(headers: Headers) -> Headers:
    """All others: what a caller says of itself is not taken."""
    return [each for each in headers if each[0] not in NAMES]


def from_trusted(headers: Headers, peer: str, is_trusted: Callable[[str], bool]) -> Headers:
    """With one address as `X-Forwarded-For`, and without `Forwarded`. `peer`: who connected, whom
    the settings trust."""
    listed = _joined(headers, FOR)
    hops = reversed(listed.split(",") if listed else _elements(headers))
    address, accepted = peer, ""
    for _, hop in zip(range(HOPS), hops, strict=False):
        node = hop.strip() if listed else _fields(hop).get("for", "")
        try:
            address = str(ip_address(_node(node) or (node if listed else "")))
        except ValueError:
            break
        accepted = hop
        if not is_trusted(address):
            break
    kept = [each for each in headers if each[0] not in (FOR, FORWARDED)]
    kept.append((FOR, address.encode()))
    if accepted and not listed:
        said = _fields(accepted)
        there = {name for name, _ in kept}
        kept += [
            (name, said[field].lower().encode("latin-1"))
            for name, field in ((PROTO, "proto"), (HOST, "host"))
            if field in said and name not in there
        ]
    return kept


def _joined(headers: Headers, name: bytes) -> str:
    return ",".join(value.decode("latin-1") for each, value in headers if each == name)


def _elements(headers: Headers) -> list[str]:
    """Of `Forwarded`, whose lines are read each by itself."""
    lines = [value.decode("latin-1") for name, value in headers if name == FORWARDED]
    return [element for line in lines for element in _ELEMENT.findall(_closed(line))]


def _closed(line: str) -> str:
    """With nothing escaped, which no address needs, and every quote closed: of an odd number the
    first is open, as proxies add to the line's end."""
    _, escape, rest = line.rpartition("\\")
    line = f"_{rest}" if escape else line
    return line.replace('"', "_", 1) if line.count('"') % 2 else line


def _fields(element: str) -> dict[str, str]:
    """The parameters of one element; of one that cannot be read, those before what cannot."""
    return dict(_pairs(element))


def _pairs(element: str) -> Iterator[tuple[str, str]]:
    at = 0
    while at < len(element):
        found = _PAIR.match(element, at)
        if found is None:
            return
        quoted, plain = found[2], found[3]
        yield found[1].lower(), plain if quoted is None else quoted
        at = found.end()


def _node(name: str) -> str:
    """Its address; what is no address, such as `unknown`, is returned as nothing."""
    found = _NODE.fullmatch(name)
    return "" if found is None else found[1] or found[2]
