"""`gateway.channel`: the ports and the encryption of the data channel.

The data channel is the TCP connections on which gateways send work to replicas; replicas listen.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from pydantic import Field, StringConstraints, model_validator

from yaml_document.section import Section, wrong

FilePath = Annotated[str, StringConstraints(min_length=1, max_length=4096)]


@dataclass(frozen=True, slots=True)
class ChannelTls:
    """PEM files, present on every node."""

    certificate: str  # this side's
    key: str  # of that certificate
    authority: str  # must have signed both sides' certificates


class ChannelTlsSettings(Section):
    certificate: FilePath = Field(
        description="PEM file, on every node, of the certificate of gateways and replicas."
    )
    key: FilePath = Field(description="PEM file of the certificate's private key.")
    authority: FilePath = Field(
        description="PEM file of the authority that signed the certificates of both sides."
    )


class ChannelSettings(Section):
    first_port: int = Field(
        default=0,
        ge=0,
        le=65_535,
        description="First of the ports on which replicas listen for gateways, so that a firewall "
        "or a NetworkPolicy can name them. 0: any free port. On a cluster of one machine, replicas "
        "listen only on the loopback address.",
    )
    last_port: int = Field(
        default=0,
        ge=0,
        le=65_535,
        description="Last of these ports. Each replica of a node takes one; while a version is "
        "replaced, twice as many may run.",
    )
    tls: ChannelTlsSettings | None = Field(
        default=None,
        description="TLS between gateways and replicas. Unset: both sides authenticate each other, "
        "but do not encrypt.",
    )

    @model_validator(mode="after")
    def _is_a_range(self) -> ChannelSettings:
        if bool(self.first_port) != bool(self.last_port):
            name = "last_port" if self.first_port else "first_port"
            raise wrong("is missing; must be given, since the other end of the range is", name)
        if self.last_port < self.first_port:
            raise wrong(
                f"is {self.last_port}; must be at least {self.first_port} (first_port)", "last_port"
            )
        return self


def channel_ports(channel: ChannelSettings) -> Sequence[int]:
    """Ports to try in order; 0 is any free one."""
    return range(channel.first_port, channel.last_port + 1)


def channel_tls(channel: ChannelSettings) -> ChannelTls | None:
    tls = channel.tls
    return None if tls is None else ChannelTls(tls.certificate, tls.key, tls.authority)
