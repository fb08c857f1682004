"""The certificate that HAProxy shows: checked before it is served, renewed while HAProxy runs.

HAProxy wants certificate and key in one file. That file is made beside its configuration, readable
by its owner only. The process that watches HAProxy looks at the settings' files each second. When
they have changed and fit together, it hands them over at the admin socket: existing connections
keep the old certificate, new ones get the new. If the files do not fit, that is printed on standard
error, and the last good ones stay. Uses the standard library only, like `haproxy_wrapper`.
Source: HAProxy 2.8's management guide, `set ssl cert`, `commit ssl cert`, `set ssl ca-file`.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from typing import NamedTuple

from deployments.control.ingress.haproxy_admin import command

_LIMIT_S = 5.0  # for an answer at the admin socket
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
            file.write(_pem(self.certificate) + _pem(self.key))
        os.replace(made, self.combined)

    def stamp(self) -> Stamp:
        """Changes when the files do, as far as the file system tells; Kubernetes swaps links."""
        found = []
        for path in filter(None, (self.certificate, self.key, self.client_ca)):
            with suppress(OSError):
                entry = os.stat(path)
                found.append((entry.st_mtime_ns, entry.st_ino, entry.st_size))
        return tuple(found)


class Renewal:
    """Renews the certificate of a running HAProxy. `files` None: it has no certificate."""

    def __init__(self, files: CertificateFiles | None) -> None:
        self._files = files
        self._seen = files.stamp() if files else ()

    def look(self, admin_socket: str) -> None:
        """Hand new files over, if there are any. Raises nothing. A fault of the files is printed
        once, until they change again. If HAProxy does not answer, the next look tries again."""
        if self._files is None or (stamp := self._files.stamp()) == self._seen:
            return
        why = self._files.problem()
        if why is None:
            try:
                self._files.combine()
                why = _hand_over(self._files, admin_socket)
            except OSError as error:
                why, stamp = f"{error}; trying again", self._seen
        self._seen = stamp
        if why is not None:
            print(f"headrace-haproxy: the certificate is not renewed: {why}", file=sys.stderr)


def _hand_over(files: CertificateFiles, admin_socket: str) -> str | None:
    """Hand the files over. Returns HAProxy's complaint, or None. Raises OSError."""
    said = _ask(admin_socket, "ssl cert", files.combined, _pem(files.combined))
    if said is None and files.client_ca:
        said = _ask(admin_socket, "ssl ca-file", files.client_ca, _pem(files.client_ca))
    return said


def _ask(admin_socket: str, what: str, path: str, pem: str) -> str | None:
    command(admin_socket, f"set {what} {path} <<\n{pem}\n", _LIMIT_S)
    said = command(admin_socket, f"commit {what} {path}\n", _LIMIT_S)
    return None if "Success" in said else f"HAProxy says: {said.strip()}"


def _pem(path: str) -> str:
    """The file without empty lines, at which the admin socket would stop reading."""
    with open(path, encoding="utf-8", errors="replace") as file:
        return "".join(f"{line.strip()}\n" for line in file if line.strip())


def _said(error: Exception) -> str:
    return getattr(error, "reason", None) or str(error)
