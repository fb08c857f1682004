"""PEM files of a certificate, its key and the authority of callers' certificates: do they fit?"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import NamedTuple

Stamp = tuple[tuple[int, int, int], ...]  # modified, inode, size


class CertificateFiles(NamedTuple):
    """Paths of PEM files."""

    certificate: str
    key: str
    client_ca: str  # "": callers need no certificate
    combined: str = ""  # certificate and key in one, made here

    def problem(self) -> str | None:
        """Why the files cannot be served; None if they can."""
        import ssl

        for path in filter(None, (self.certificate, self.key, self.client_ca)):
            try:
                with open(path, "rb"):
                    pass
            except OSError as error:
                return f"{path} cannot be read: {error.strerror}"
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        try:
            context.load_cert_chain(self.certificate, self.key, password=b"")
        except (ssl.SSLError, ValueError) as error:
            return (
                f"{self.certificate} and {self.key} are no certificate in PEM and its key without "
                f"a password: {_said(error)}"
            )
        try:
            if self.client_ca:
                context.load_verify_locations(self.client_ca)
        except (ssl.SSLError, ValueError) as error:
            return f"{self.client_ca} has no authority's certificate in PEM: {_said(error)}"
        return None

    def combine(self) -> None:
        """Write `combined`. Raises OSError."""
        made = f"{self.combined}.{os.getpid()}"
        with suppress(FileNotFoundError):
            os.remove(made)
        with os.fdopen(os.open(made, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(pem(self.certificate) + pem(self.key))
        os.replace(made, self.combined)

    def stamp(self) -> Stamp:
        """Changes when the files do, as far as the file system tells; Kubernetes swaps links."""
        found = []
        for path in filter(None, (self.certificate, self.key, self.client_ca)):
            with suppress(OSError):
                entry = os.stat(path)
                found.append((entry.st_mtime_ns, entry.st_ino, entry.st_size))
        return tuple(found)


def pem(path: str) -> str:
    """The file without empty lines, at which HAProxy's admin socket would stop reading."""
    with open(path, encoding="utf-8", errors="replace") as file:
        return "".join(f"{line.strip()}\n" for line in file if line.strip())


def _said(error: Exception) -> str:
    return getattr(error, "reason", None) or str(error)
