"""What the program in HAProxy's place is told, in its environment (HEADRACE_HAPROXY_…).

Listed in docs/cluster.md. Standard library alone, like `haproxy_wrapper`, which reads it at every
change of the gateways.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

PREFIX = "HEADRACE_HAPROXY_"
MOST_USED = 2  # times its own bound a gateway takes, of all tenants together (`SharedBound`)
_BEING_REFUSED = 64  # by a gateway that has so many, and pages that it does not count
_ADDRESS = r"[0-9A-Za-z.:_%-]+"


class Refused(Exception):
    """HAProxy must not be started like this; the message says why and what would be right."""


class Options(NamedTuple):
    """`host`: where requests are accepted, "" for what Serve says; `admin_host`: where HAProxy's
    statistics and metrics are; `headers_s`: in which a request's headers must arrive; `body_s`: in
    which a body does that fits HAProxy's buffer; `max_body_bytes`: longer ones are the gateway's to
    refuse; `max_requests`: a gateway's own bound, which tenants share; `max_connections`: at most;
    `source_connections`: of one address at most, 0 for no bound of its own; `trusted_proxies`:
    networks whose word is taken for where a request came from; `certificate`, `key`, `client_ca`:
    PEM files, "" for none; `operators_only`: only the operator's pages need a client's certificate
    of that authority; `program`: HAProxy itself, "" for
    Ray's or the PATH's; `replay`: what a gateway had when it died goes to another one;
    `compression`: of answers, for who asks."""

    host: str = ""
    admin_host: str = "127.0.0.1"
    headers_s: int = 10
    body_s: int = 30
    max_body_bytes: int = 64 * 1024 * 1024
    max_requests: int = 2000
    max_connections: int = 65_536
    source_connections: int = 0
    trusted_proxies: tuple[str, ...] = ()
    certificate: str = ""
    key: str = ""
    client_ca: str = ""
    operators_only: bool = False
    program: str = ""
    replay: bool = True
    compression: bool = False

    @property
    def places(self) -> int:
        """Requests that HAProxy lets be under way at one gateway: all that the gateway may take, so
        that it says who is refused, and not who comes first to HAProxy."""
        return MOST_USED * self.max_requests + _BEING_REFUSED

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> Options:
        """Raises Refused."""
        default = cls()
        return cls(
            host=_address(environ, "HOST", default.host),
            admin_host=_address(environ, "ADMIN_HOST", default.admin_host),
            headers_s=_number(environ, "HEADERS_S", default.headers_s),
            body_s=_number(environ, "BODY_S", default.body_s),
            max_body_bytes=_number(environ, "MAX_BODY_BYTES", default.max_body_bytes),
            max_requests=_number(environ, "MAX_REQUESTS", default.max_requests),
            max_connections=_number(environ, "MAXCONN", default.max_connections),
            source_connections=_number(
                environ, "SOURCE_CONNECTIONS", default.source_connections, least=0
            ),
            trusted_proxies=_networks(environ, "TRUSTED_PROXIES"),
            certificate=_file(environ, "CERTIFICATE"),
            key=_file(environ, "KEY"),
            client_ca=_file(environ, "CLIENT_CA"),
            operators_only=_switch(environ, "CLIENT_CA_OPERATORS", default.operators_only),
            program=environ.get(f"{PREFIX}PROGRAM", ""),
            replay=_switch(environ, "REPLAY", default.replay),
            compression=_switch(environ, "COMPRESSION", default.compression),
        )


def _address(environ: Mapping[str, str], name: str, default: str) -> str:
    value = environ.get(PREFIX + name) or default
    if value and not re.fullmatch(_ADDRESS, value):
        raise Refused(f"{PREFIX}{name} is {value!r}; must be an address, such as 127.0.0.1")
    return value


def _number(environ: Mapping[str, str], name: str, default: int, least: int = 1) -> int:
    value = environ.get(PREFIX + name) or str(default)
    if not re.fullmatch(r"[0-9]{1,10}", value) or int(value) < least:
        raise Refused(f"{PREFIX}{name} is {value!r}; must be a whole number from {least}")
    return int(value)


def _switch(environ: Mapping[str, str], name: str, default: bool) -> bool:
    value = environ.get(PREFIX + name) or str(int(default))
    if value not in ("0", "1"):
        raise Refused(f"{PREFIX}{name} is {value!r}; must be 0 or 1")
    return value == "1"


def _file(environ: Mapping[str, str], name: str) -> str:
    value = environ.get(PREFIX + name, "")
    if value and not re.fullmatch(r"/[0-9A-Za-z._/+@-]+", value):
        raise Refused(
            f"{PREFIX}{name} is {value!r}; must be an absolute path of letters, digits and ._/+@-"
        )
    return value


def _networks(environ: Mapping[str, str], name: str) -> tuple[str, ...]:
    found = tuple(environ.get(PREFIX + name, "").split())
    if wrong := [each for each in found if not re.fullmatch(r"[0-9a-fA-F.:]+(/\d{1,3})?", each)]:
        raise Refused(f"{PREFIX}{name} has {wrong[0]!r}; must be networks such as 10.0.0.0/8")
    return found
