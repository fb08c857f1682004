"""Settings of what callers reach HAProxy by: its certificate, and theirs."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from yaml_document.section import Section

_File = Annotated[str, StringConstraints(pattern=r"^/[0-9A-Za-z._/+@-]+$", max_length=4096)]


class TlsSettings(Section):
    certificate: _File = Field(
        examples=["/etc/headrace/tls.crt"],
        description="PEM file, on every node with an HAProxy, of the certificate that callers are "
        "shown, and those between it and its authority. Taken up within seconds when it changes.",
    )
    key: _File = Field(
        examples=["/etc/headrace/tls.key"],
        description="PEM file of its private key, without a password.",
    )
    client_ca: _File | None = Field(
        default=None,
        examples=["/etc/headrace/clients.crt"],
        description="PEM file of the authority that signed callers' certificates; unset, they "
        "need none.",
    )
    client_ca_for: Literal["everyone", "operators"] = Field(
        default="everyone",
        description="Who needs a certificate of `client_ca`: all callers, a load balancer's checks "
        "included, or those of `/admin` alone.",
    )
