"""The options of the program in HAProxy's place, from environment variables HEADRACE_HAPROXY_….

docs/cluster.md lists them. Uses the standard library only, like `haproxy_wrapper`, which reads the
options at every change of the gateways.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

PREFIX = "HEADRACE_HAPROXY_"
MAX_USED = 2  # a gateway takes so many times its bound, of all tenants together (`SharedBound`)
_BEING_REFUSED = 64  # requests that a full gateway is refusing, and pages that it does not count
_VARIABLES = {"max_connections": "MAXCONN", "operators_only": "CLIENT_CA_OPERATORS"}
"""Of options: their variable, where it is not called like the option."""
_ADDRESS = (r"[0-9A-Za-z.:_%-]+", "an address, such as 127.0.0.1")
_RULES = {  # by option or its type: what a value looks like, and that in words
    "host": _ADDRESS,
    "admin_host": _ADDRESS,
    "file": (r"/[0-9A-Za-z._/+@-]+", "an absolute path of letters, digits and ._/+@-"),
    "source_connections": (r"[0-9]{1,10}", "a whole number from 0"),
    "int": (r"(?=.{1,10}$)0*[1-9][0-9]*", "a whole number from 1"),
    "bool": (r"[01]", "0 or 1"),
}


class HAProxyConfigError(Exception):
    """HAProxy must not be started with these options. The message says why, and what is right."""


class HAProxyOptions(NamedTuple):
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
    def of(cls, environ: Mapping[str, str]) -> HAProxyOptions:
        """The options that the environment sets. Raises Refused for an invalid one."""
        default = cls()._asdict()
        return cls(**{name: _option(environ, name, default[name]) for name in default})


def _option(environ: Mapping[str, str], name: str, default: Any) -> Any:
    """The option's value: of its default's type."""
    variable = PREFIX + _VARIABLES.get(name, name.upper())
    value = environ.get(variable, "")
    if not value or name == "program":
        return value or default
    if isinstance(default, tuple):
        for network in value.split():
            if not re.fullmatch(r"[0-9a-fA-F.:]+(/\d{1,3})?", network):
                raise HAProxyConfigError(
                    f"{variable} has {network!r}; must be networks such as 10.0.0.0/8"
                )
        return tuple(value.split())
    kind = name if name in _RULES else type(default).__name__
    pattern, rule = _RULES.get(kind, _RULES["file"])
    if not re.fullmatch(pattern, value):
        raise HAProxyConfigError(f"{variable} is {value!r}; must be {rule}")
    if isinstance(default, bool):
        return value == "1"
    return int(value) if isinstance(default, int) else value
