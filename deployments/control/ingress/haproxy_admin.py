"""HAProxy's admin socket: commands, and the certificate's renewal while HAProxy runs.

HAProxy wants certificate and key in one file. That file is made beside its configuration, readable
by its owner only. The process that watches HAProxy looks at the settings' files each second. When
they have changed and fit together, it hands them over: existing connections keep the old
certificate, new ones get the new. If the files do not fit, that is printed on standard error, and
the last good ones stay. Uses the standard library only, like `haproxy_wrapper`.
Source: HAProxy 2.8's management guide, "Unix Socket commands", `set ssl cert`, `commit ssl cert`.
"""

from __future__ import annotations

import socket
import sys

from deployments.process.certificate_files import CertificateFiles, pem


def command(admin_socket: str, words: str, limit_s: float) -> str:
    """The answer to a command. Raises OSError."""
    with socket.socket(socket.AF_UNIX) as conn:
        conn.settimeout(limit_s)
        conn.connect(admin_socket)
        conn.sendall(words.encode())
        with conn.makefile("rb") as answer:
            return answer.read().decode("utf-8", "replace")


_LIMIT_S = 5.0  # for an answer at the admin socket


class HAProxyRenewal:
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
                own, ca = self._files.combined, self._files.client_ca
                why = _ask(admin_socket, "ssl cert", own) or (
                    _ask(admin_socket, "ssl ca-file", ca) if ca else None
                )
            except OSError as error:
                why, stamp = f"{error}; trying again", self._seen
        self._seen = stamp
        if why is not None:
            print(f"headrace-haproxy: the certificate is not renewed: {why}", file=sys.stderr)


def _ask(admin_socket: str, what: str, path: str) -> str | None:
    """Hand the file over. Returns HAProxy's complaint, or None. Raises OSError."""
    command(admin_socket, f"set {what} {path} <<\n{pem(path)}\n", _LIMIT_S)
    said = command(admin_socket, f"commit {what} {path}\n", _LIMIT_S)
    return None if "Success" in said else f"HAProxy says: {said.strip()}"
