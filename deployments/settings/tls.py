"""`gateway.tls`: the server's certificate, and whether callers need one of their own."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from yaml_document.section import Section

# Made absolute where the file is read; it may stand in HAProxy's configuration, unquoted.
_File = Annotated[str, StringConstraints(pattern=r"^/[0-9A-Za-z._/+@-]+$", max_length=4096)]


class TlsSettings(Section):
    certificate: _File = Field(
        examples=["/etc/headrace/tls.crt"],
        description="PEM file, on every node that callers reach, of the server's certificate and "
        "its intermediate certificates. A change takes effect within seconds.",
    )
    key: _File = Field(
        examples=["/etc/headrace/tls.key"],
        description="PEM file of the certificate's private key, without a password.",
    )
    client_ca: _File | None = Field(
        default=None,
        examples=["/etc/headrace/clients.crt"],
        description="PEM file of the authority that signed callers' certificates. Unset: callers "
        "need no certificate.",
    )
    client_ca_for: Literal["everyone", "operators"] = Field(
        default="everyone",
        description="Who needs a certificate of `client_ca`: all callers, including a load "
        "balancer's health checks (`everyone`), or only callers of `/admin` (`operators`).",
    )
