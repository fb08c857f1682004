"""Which addresses may an input be fetched from, whatever its host's name resolves to?

Public ones, and those of listed networks. An address that stands for an IPv4 address is judged as
that one (IPv4-mapped; NAT64, which IPv6 clusters reach public hosts by); other ways to write one
(IPv4-compatible, 6to4, Teredo) and what is no global unicast address are refused unless listed.
Source: RFC 6890, 6052, 4291 §2.5.5; IANA's special-purpose address registries.
"""

from __future__ import annotations

from collections.abc import Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

Network = IPv4Network | IPv6Network
_NAT64 = IPv6Network("64:ff9b::/96")
_GLOBAL = IPv6Network("2000::/3")
# Not public, though Python 3.11 says so of some: protocol assignments (metadata services among
# them), relays, tunnels, documentation.
_SPECIAL: tuple[Network, ...] = (
    IPv4Network("192.0.0.0/24"), IPv4Network("192.88.99.0/24"),
    IPv6Network("2001::/23"), IPv6Network("2002::/16"), IPv6Network("2620:4f:8000::/48"),
    IPv6Network("3fff::/20"),
)  # fmt: skip


def networks_of(listed: Sequence[str]) -> tuple[Network, ...]:
    return tuple(ip_network(each) for each in listed)


def may_connect(address: str, listed: Sequence[Network] = ()) -> bool:
    """`address`: as a resolver gives it; with a zone, or no address: no."""
    try:
        found = ip_address(address)
    except ValueError:
        return False
    if isinstance(found, IPv6Address):
        if found.scope_id is not None:
            return False
        if found.ipv4_mapped is not None:
            found = found.ipv4_mapped
    if any(found in network for network in listed if network.version == found.version):
        return True
    if isinstance(found, IPv6Address) and found in _NAT64:
        return may_connect(str(IPv4Address(int(found) & 0xFFFF_FFFF)), listed)
    if isinstance(found, IPv6Address) and found not in _GLOBAL:
        return False
    special = any(found in network for network in _SPECIAL if network.version == found.version)
    return found.is_global and not found.is_multicast and not special
