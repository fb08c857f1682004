"""The options of the program in HAProxy's place, from variables HEADRACE_HAPROXY_….

docs/cluster.md lists them. They are in the environment; a gateway has newer values of some
(`deployments.contract.haproxy_settings`). Uses the standard library only, like `haproxy_wrapper`,
which reads the options at every change of the gateways.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import sys
import time
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from deployments.contract import haproxy_settings

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
    "trusted_proxies": (r"[0-9a-fA-F.:]+(/\d{1,3})?", "networks such as 10.0.0.0/8"),
    "cors_origins": (r"\*|https?://[0-9a-z.:\[\]-]+", "origins such as https://a.example"),
    "path_prefix": (r"(/[0-9A-Za-z_~-][0-9A-Za-z._~-]*)+", "a path such as /inference"),
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
    threads: int = 0  # of HAProxy; 0: as Serve says
    source_connections: int = 0  # of one address; 0: no bound of its own
    trusted_proxies: tuple[str, ...] = ()  # networks that are believed about a request's source
    certificate: str = ""  # PEM file; "": none
    key: str = ""  # PEM file; "": none
    client_ca: str = ""  # PEM file; "": none
    operators_only: bool = False  # only operator pages need a client's certificate of `client_ca`
    program: str = ""  # HAProxy itself; "": Ray's, or that on the PATH
    replay: bool = True  # a request at a gateway that died is sent to another gateway
    compression: bool = False  # of answers, for clients that accept it
    grpc_port: int = 0  # 0: none
    grpc_idle_s: int = 3600  # on a stream, of both sides
    grpc_tls: bool = True  # where there is a certificate
    path_prefix: str = ""  # that is taken off paths which have it; "": none
    cors_origins: tuple[str, ...] = ()  # whose pages may read refusals; "*": any
    cors_credentials: bool = False  # and with credentials

    @property
    def places(self) -> int:
        """Requests that HAProxy lets be under way at one gateway. They are all that the gateway may
        take, so that the gateway decides who is refused, and not the order of arrival."""
        return MAX_USED * self.max_requests + _BEING_REFUSED

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> HAProxyOptions:
        """The options that the environment sets. Raises HAProxyConfigError for an invalid
        one."""
        default = cls()._asdict()
        return cls(**{name: _option(environ, name, default[name]) for name in default})


def _option(environ: Mapping[str, str], name: str, default: Any) -> Any:
    """The option's value: of its default's type."""
    variable = PREFIX + _VARIABLES.get(name, name.upper())
    value = environ.get(variable, "")
    if not value or name == "program":
        return value or default
    if isinstance(default, tuple):
        pattern, rule = _RULES[name]
        for word in value.split():
            if not re.fullmatch(pattern, word):
                raise HAProxyConfigError(f"{variable} has {word!r}; must be {rule}")
        return tuple(value.split())
    kind = name if name in _RULES else type(default).__name__
    pattern, rule = _RULES.get(kind, _RULES["file"])
    if not re.fullmatch(pattern, value):
        raise HAProxyConfigError(f"{variable} is {value!r}; must be {rule}")
    if isinstance(default, bool):
        return value == "1"
    return int(value) if isinstance(default, int) else value


# ---- what the gateways answer -------------------------------------------------------------------

# Other people's applications may have replicas in sections of their own.
_GATEWAYS = re.compile(r"^backend http-gateway\n((?: .*\n|\n)*)", re.MULTILINE)
_GATEWAY = re.compile(r"^ *server SERVE_REPLICA_\S+ (\S+):(\d+) ", re.MULTILINE)
_NAME = re.compile(r"^ *server (SERVE_REPLICA_\S+) ", re.MULTILINE)
_ANSWER_S = 1.0  # a gateway's, which takes a millisecond
_ANSWERS_S = 10.0  # all gateways' together: Serve waits half a minute for HAProxy's start


def options_now(environ: Mapping[str, str], config: str, kept: str) -> HAProxyOptions:
    """The options of a gateway that the configuration names, which go before the environment's. If
    none answers, the last answer stays valid: the file `kept` has it. A configuration without
    gateways, as Serve's first one is, removes that file. Raises HAProxyConfigError."""
    section = _GATEWAYS.search(config)
    gateways = _GATEWAY.findall(section[1]) if section else []
    if not gateways:
        with contextlib.suppress(OSError):
            os.unlink(kept)
        return HAProxyOptions.of(environ)
    for answer in _answers(gateways):
        try:
            options = HAProxyOptions.of({**environ, **answer})
        except HAProxyConfigError as wrong:
            print(f"headrace-haproxy: a gateway's answer is ignored: {wrong}", file=sys.stderr)
            continue
        with contextlib.suppress(OSError):  # the next start asks again
            with open(f"{kept}.new", "wb") as file:
                file.write(haproxy_settings.written(answer))
            os.replace(f"{kept}.new", kept)
        return options
    print(
        f"headrace-haproxy: none of {len(gateways)} gateways has answered what its bounds are; "
        "HAProxy has those of its last start until gateways are replaced",
        file=sys.stderr,
    )
    return HAProxyOptions.of({**environ, **_kept(kept)})


def gateway_names(config: str) -> list[str]:
    """Of the servers that are gateways."""
    section = _GATEWAYS.search(config)
    return _NAME.findall(section[1]) if section else []


def _kept(path: str) -> dict[str, str]:
    """The last answer; nothing where there is none, or it is damaged."""
    try:
        with open(path, "rb") as file:
            found = haproxy_settings.read(file.read())
        HAProxyOptions.of(found)
    except (OSError, ValueError, HAProxyConfigError):
        return {}
    return found


def _answers(gateways: list[tuple[str, str]]) -> Iterator[dict[str, str]]:
    """The gateways' answers, in order. Those that are silent are asked again, until the time of all
    is over, of which each has its share, so that the last is asked too; those that refuse the
    connection, or are none of ours, are not."""
    end = time.monotonic() + _ANSWERS_S
    while gateways:
        silent = []
        for place, (host, port) in enumerate(gateways):
            if (left := end - time.monotonic()) <= 0:
                return
            share = min(left / (len(gateways) - place), _ANSWER_S)
            try:
                yield _answer(host.strip("[]"), int(port), share)
            except TimeoutError:
                silent.append((host, port))
            except (OSError, ValueError):
                continue
        gateways = silent


def _answer(host: str, port: int, limit_s: float) -> dict[str, str]:
    """All of it within the limit. Raises OSError, and ValueError where it is not a gateway's."""
    end = time.monotonic() + limit_s
    whole = b""
    with socket.create_connection((host, port), limit_s) as conn:
        conn.sendall(
            f"GET {haproxy_settings.PATH} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
            .encode()
        )  # fmt: skip
        while room := haproxy_settings.MAX_BYTES - len(whole):
            if (left := end - time.monotonic()) <= 0:
                raise TimeoutError
            conn.settimeout(left)
            if not (piece := conn.recv(room)):
                break
            whole += piece
    head, _, body = whole.partition(b"\r\n\r\n")
    found = haproxy_settings.read(body) if re.match(rb"HTTP/1\.1 200 ", head) else {}
    if not found:
        raise ValueError("no gateway of ours")
    return found
