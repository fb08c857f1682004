"""Settings of the data channel: where replicas listen for gateways, and whether it is encrypted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from pydantic import Field, StringConstraints, model_validator

from deployments.contract.channel.sockets import ChannelTls
from yaml_document.section import Section, wrong

FilePath = Annotated[str, StringConstraints(min_length=1, max_length=4096)]


class ChannelTlsSettings(Section):
    certificate: FilePath = Field(
        description="PEM file, on every node, of the certificate that gateways and replicas show."
    )
    key: FilePath = Field(description="PEM file of its private key.")
    authority: FilePath = Field(
        description="PEM file of the authority that has signed both sides' certificates."
    )


class ChannelSettings(Section):
    first_port: int = Field(
        default=0,
        ge=0,
        le=65_535,
        description="First of the ports on which replicas listen for gateways, so that a firewall "
        "or a NetworkPolicy can name them; 0: any free port. On a cluster of one machine replicas "
        "listen on its loopback address alone.",
    )
    last_port: int = Field(
        default=0,
        ge=0,
        le=65_535,
        description="Last of these ports. Every replica of a node takes one, and while a version "
        "is replaced twice as many may run.",
    )
    tls: ChannelTlsSettings | None = Field(
        default=None,
        description="Encrypts what gateways and replicas send each other; unset, they prove who "
        "they are and send as it is.",
    )

    @model_validator(mode="after")
    def _is_a_range(self) -> ChannelSettings:
        if bool(self.first_port) != bool(self.last_port):
            name = "last_port" if self.first_port else "first_port"
            raise wrong("is missing; a range of ports has a first and a last one", name)
        if self.last_port < self.first_port:
            raise wrong(f"is below first_port, which is {self.first_port}", "last_port")
        return self


def channel_ports(channel: ChannelSettings) -> Sequence[int]:
    """Ports to try in order; 0 is any free one."""
    return range(channel.first_port, channel.last_port + 1)


def channel_tls(channel: ChannelSettings) -> ChannelTls | None:
    tls = channel.tls
    return None if tls is None else ChannelTls(tls.certificate, tls.key, tls.authority)
