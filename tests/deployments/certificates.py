"""Authorities made for a test, and certificates that they have signed, as PEM files."""

from __future__ import annotations

import datetime
import ipaddress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from deployments.process.sockets import ChannelTls

_FROM = datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)
_UNTIL = datetime.datetime(2120, 1, 1, tzinfo=datetime.UTC)
_PEM = serialization.Encoding.PEM


class Authority:
    """`folder` gets its files; `name` tells authorities apart."""

    def __init__(self, folder: Path, name: str = "authority") -> None:
        self._folder, self._name = folder, name
        self._key = ec.generate_private_key(ec.SECP256R1())
        certificate = self._signed(self._key.public_key(), name, authority=True)
        self.file = str(folder / f"{name}.pem")
        Path(self.file).write_bytes(certificate)

    def tls(self, trusted: Authority | None = None, name: str = "") -> ChannelTls:
        """A new certificate with its key; `trusted` signs the other side's, else this one does.
        `name`: the host's, besides 127.0.0.1."""
        key = ec.generate_private_key(ec.SECP256R1())
        certificate = self._folder / f"{self._name}-signed.pem"
        certificate.write_bytes(self._signed(key.public_key(), "peer", authority=False, host=name))
        private = certificate.with_suffix(".key")
        private.write_bytes(
            key.private_bytes(_PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        )
        return ChannelTls(str(certificate), str(private), (trusted or self).file)

    def _signed(
        self, key: ec.EllipticCurvePublicKey, subject: str, *, authority: bool, host: str = ""
    ) -> bytes:
        builder = (
            x509.CertificateBuilder()
            .subject_name(_named(subject))
            .issuer_name(_named(self._name))
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(_FROM)
            .not_valid_after(_UNTIL)
            .add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
        )
        if not authority:
            names: list[x509.GeneralName] = [x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
            names += [x509.DNSName(host)] if host else []
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        return builder.sign(self._key, hashes.SHA256()).public_bytes(_PEM)


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
