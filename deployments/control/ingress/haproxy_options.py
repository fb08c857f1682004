"""The options of the program in HAProxy's place, from environment variables HEADRACE_HAPROXY_….

docs/cluster.md lists them. Uses the standard library only, like `haproxy_wrapper`, which reads the
options at every change of the gateways.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

PREFIX = "HEADRACE_HAPROXY_"
MAX_USED = 2  # a gateway takes so many times its bound, of all tenants together (`SharedBound`)
_BEING_REFUSED = 64  # requests that a full gateway is refusing, and pages that it does not count
_ADDRESS = r"[0-9A-Za-z.:_%-]+"


class Refused(Exception):
    """HAProxy must not be started with these options. The message says why, and what is right."""


class Options(NamedTuple):
    """What HAProxy is to do."""

    host: str = ""  # where requests are accepted; "": as Serve says
    admin_host: str = "127.0.0.1"  # where HAProxy's statistics and metrics are
    headers_s: int = 10  # in which a request's headers must arrive
    body_s: int = 30  # in which a body must arrive that fits HAProxy's buffer
    max_body_bytes: int = 64 * 1024 * 1024  # the gateway refuses longer bodies
    max_requests: int = 2000  # a gateway's own bound, which tenants share
    max_connections: int = 65_536
    source_connections: int = 0  # of one address; 0: no bound of its own
    trusted_proxies: tuple[str, ...] = ()  # networks that are believed about a request's source
    certificate: str = ""  # PEM file; "": none
    key: str = ""  # PEM file; "": none
    client_ca: str = ""  # PEM file; "": none
    operators_only: bool = False  # only operator pages need a client's certificate of `client_ca`
    program: str = ""  # HAProxy itself; "": Ray's, or that on the PATH
    replay: bool = True  # a request at a gateway that died is sent to another gateway
    compression: bool = False  # of answers, for clients that accept it

    @property
    def places(self) -> int:
        """Requests that HAProxy lets be under way at one gateway. They are all that the gateway may
        take, so that the gateway decides who is refused, and not the order of arrival."""
        return MAX_USED * self.max_requests + _BEING_REFUSED

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> Options:
        """The options that the environment sets. Raises Refused for an invalid one."""
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
