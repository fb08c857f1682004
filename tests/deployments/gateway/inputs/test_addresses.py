"""Which addresses a listed host may have."""

from __future__ import annotations

import pytest

from deployments.gateway.inputs.addresses import may_connect, networks_of

PUBLIC = """8.8.8.8 1.1.1.1 ::ffff:8.8.8.8 64:ff9b::808:808 2001:4860:4860::8888 2606:4700::1111"""
OTHERS = """
127.0.0.1 10.0.0.1 172.16.0.1 192.168.0.1 169.254.169.254 0.0.0.0 100.64.0.1 100.100.100.200
192.0.0.192 192.88.99.1 192.0.2.1 198.18.0.1 203.0.113.1 224.0.0.1 240.0.0.1 255.255.255.255
::1 :: ::ffff:127.0.0.1 ::ffff:169.254.169.254 ::ffff:a00:1 64:ff9b::7f00:1 64:ff9b::a9fe:a9fe
64:ff9b:1::808:808 2002:7f00:1:: 2002:808:808:: 2001:0:53aa:64c:: ::127.0.0.1 ::808:808 fe80::1
fe80::1%eth0 fec0::1 fd00:ec2::254 fc00::1 ff02::1 2001:db8::1 100::1 3fff::1 5f00::1
2620:4f:8000::1 4000::1 2130706433 0177.0.0.1 0x7f.1 127.1 localhost example.org
"""


@pytest.mark.parametrize("address", PUBLIC.split())
def test_public_addresses_may_be_connected_to(address: str) -> None:
    assert may_connect(address)


@pytest.mark.parametrize("address", [*OTHERS.split(), "", " 8.8.8.8", "8.8.8.8:443", "[::1]"])
def test_all_other_addresses_may_not(address: str) -> None:
    assert not may_connect(address)


@pytest.mark.parametrize(
    ("address", "may"),
    [
        ("10.1.2.3", True),
        ("::ffff:10.1.2.3", True),
        ("64:ff9b::a01:203", True),
        ("10.2.0.1", False),
        ("fd00::7", True),
        ("fd01::7", False),
        ("169.254.169.254", False),
        ("8.8.8.8", True),
    ],
)
def test_listed_networks_are_added(address: str, may: bool) -> None:
    assert may_connect(address, networks_of(("10.1.0.0/16", "fd00::/64"))) is may
