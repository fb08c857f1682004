"""The frontend of the gRPC port: HTTP/2 from callers, HTTP/1.1 with trailers from the gateways.

HAProxy takes a gRPC request apart and hands it to the same gateways as a chunked POST, so that
bounds, replay and places at a gateway are those of HTTP (`haproxy_rules`). Only the services that
gateways have pass. A unary message is waited for, as far as it fits the buffer; its five-byte
prefix says whether all of it has come. A stream is an unfinished body from its start, and is
counted as one. What HAProxy refuses has gRPC's shape: status 200, `grpc-status`, `grpc-message`,
and `grpc-retry-pushback-ms`, which is -1 where the same request cannot do better later.
Standard library only, like `haproxy_wrapper`.
Source: gRPC over HTTP/2 (PROTOCOL-HTTP2.md), its mapping of HTTP's statuses, gRFC A6 (pushback);
HAProxy 2.8's configuration manual, 4.2 `http-error`, `http-after-response`. Why HAProxy:
docs/decisions/0077-grpc-through-haproxy.md.
"""

from __future__ import annotations

from collections.abc import Sequence

from deployments.control.ingress import haproxy_rules as rules
from deployments.control.ingress.haproxy_options import HAProxyOptions

_SERVICES = (
    r"^/(inference\.GRPCInferenceService"
    r"|grpc\.health\.v1\.Health"
    r"|grpc\.reflection\.v1(alpha)?\.ServerReflection)/[A-Za-z]+$"
)
# A caller's messages to these may come at any time, so there is no body to wait for.
_STREAMS = "path_end /ModelStreamInfer /ServerReflectionInfo"
_PREFIX_BYTES = 5  # of a message: a flag and the length
# What a caller may send of a stream before HAProxy answers. With HTTP/2's own 64 KiB a message of
# 1 MB takes 7 times as long, 10 ms away (decision 77). HTTP/1.1 has no window.
_WINDOW_BYTES = 1_048_576
# Of head and body: HAProxy keeps 1 KiB of the buffer free, and takes 8 bytes for each header.
_NEARLY_FULL_BYTES = rules.BUFFER_BYTES - 4096
_LATER_MS = 1000
_NEVER = -1
# gRPC's statuses by HTTP's. Where the gateways have an error for it, theirs (`contract/errors.py`).
_INVALID, _LATE, _EXHAUSTED, _UNIMPLEMENTED, _INTERNAL, _UNAVAILABLE = 3, 4, 8, 12, 13, 14
_OWN = {400: _INTERNAL, 408: _LATE, 500: _INTERNAL, 502: _UNAVAILABLE, 503: _UNAVAILABLE,
        504: _LATE}  # fmt: skip
_OF_GATEWAYS = {
    400: _INTERNAL, 401: 16, 403: 7, 404: _UNIMPLEMENTED, 405: _UNIMPLEMENTED, 408: _LATE,
    413: _EXHAUSTED, 414: _EXHAUSTED, 415: _UNIMPLEMENTED, 429: _EXHAUSTED, 431: _EXHAUSTED,
    500: _INTERNAL, 504: _LATE,
}  # fmt: skip
"""What an answer without gRPC's status means, as a gateway's parser or Serve's proxy gives it; any
other: unavailable."""
_PLAIN = "!{ res.hdr(content-type) -m beg application/grpc }"


def frontend(
    options: HAProxyOptions, connections: int, gateways: Sequence[str], address: str, combined: str
) -> str:
    """The section; nothing where there is no port. `connections`: as many as HAProxy takes;
    `gateways`: the names of those that it knows; `address`: where HTTP is accepted; `combined`:
    certificate and key."""
    if not options.grpc_port:
        return ""
    encrypted = bool(options.certificate and options.grpc_tls)
    lines = [
        f"bind {address}:{options.grpc_port} {_listening(options, encrypted, combined)}",
        "option http-no-delay",  # or each message of a stream may wait for the next
        # A name with a dot or an underscore is legal here. It reaches no gateway, as at nginx.
        "option http-restrict-req-hdr-names delete",
        # Of a stream on which nothing is sent in either direction; a unary body has `body_s`.
        f"timeout client {max(options.grpc_idle_s, options.body_s)}s",
        *(f"http-error status {status} {_own(status)}" for status in _OWN),
        *rules.of_connections(options, connections),
        *rules.sizes(),
        *rules.from_proxies(options, "https" if encrypted else "http"),
        *_refused_at_once(),
        *_of_streams(connections),
        rules.NO_REPLAY,
        # What was sent to a gateway may have run.
        f"http-request set-var(txn.pushback) int({_LATER_MS})",
        f"http-request set-var(txn.pushback) int({_NEVER})"
        " if { req.hdr(x-idempotent) -m str -i false }",
        *_of_messages(options, options.max_requests * max(len(gateways), 1)),
        # Answers of HAProxy's own have no body, and without one it lets no rule give a type.
        *(f"http-after-response {what} if {{ res.hdr(grpc-status) -m found }} {_PLAIN}"
          for what in ("set-status 200", "set-header content-type application/grpc")),
        *[f"default_backend {rules.BACKEND}"] * bool(gateways),
    ]  # fmt: skip
    return f"frontend {rules.GRPC_FRONTEND}\n" + "".join(f"    {line}\n" for line in lines)


def of_global(options: HAProxyOptions) -> str:
    """Lines of the section `global`."""
    if not options.grpc_port:
        return ""
    return f"    tune.h2.fe.initial-window-size {_WINDOW_BYTES}\n"


def of_backend(options: HAProxyOptions, gateways: Sequence[str]) -> str:
    """Lines of the gateways' section: what the fallback and a gateway's parser say is not gRPC."""
    if not options.grpc_port:
        return ""
    ours = f"{{ fe_name {rules.GRPC_FRONTEND} }}"
    later = _refusal(_UNAVAILABLE, rules.OWN_REFUSALS[503][0], _LATER_MS)
    lines = [
        # Serve's proxy, the fallback, passes no trailers on.
        f"http-request return {later} if {ours}{' !gateway_up' * bool(gateways)}",
        f"http-response return {later} if {ours} {{ srv_name -m beg SERVE_PROXY_ACTOR }}",
        *(
            f"http-response return {_refusal(code, f'the gateway has answered {status}', _NEVER)}"
            f" if {ours} {_PLAIN} {{ status {status} }}"
            for status, code in _OF_GATEWAYS.items()
        ),
        f"http-response return {later} if {ours} {_PLAIN}",
    ]
    return "".join(f"    {line}\n" for line in lines)


def _listening(options: HAProxyOptions, encrypted: bool, combined: str) -> str:
    words = rules.bound_as("h2")
    if not encrypted:
        return words
    words += rules.encrypted("h2", combined)
    if options.client_ca and not options.operators_only:  # there are no operator pages here
        words += f" ca-file {options.client_ca} verify required"
    return words


def _refused_at_once() -> list[str]:
    large = f"{{ var(txn.head_bytes) -m int gt {rules.MAX_HEAD_BYTES} }}"
    head = f"the path and the metadata have more than {rules.MAX_HEAD_BYTES} bytes"
    many = f"the request has more than {rules.MAX_HEADERS} headers"
    return [
        # Whoever does not speak gRPC shall not take a refusal for a success.
        "http-request return status 405 hdr allow POST if !METH_POST",
        "http-request return status 415 if !{ req.hdr(content-type) -m reg -i"
        r" ^application/grpc(\+proto)?(;.*)?$ }",
        _refused(_EXHAUSTED, head, large),
        _refused(_EXHAUSTED, many, f"{{ var(txn.headers) -m int gt {rules.MAX_HEADERS} }}"),
        _refused(_INVALID, "a request must name its authority", "!{ req.hdr(host) -m found }"),
        _refused(_INVALID, "a request may have one authorization entry",
                 "{ req.fhdr_cnt(authorization) gt 1 }"),
        _refused(_UNIMPLEMENTED, "no such service", f"!{{ path -m reg {_SERVICES} }}"),
    ]  # fmt: skip


def _of_streams(connections: int) -> list[str]:
    busy = "too many requests are on their way; send it again"
    return [
        *rules.STREAMS_COUNTED,
        *(
            _refused(_UNAVAILABLE, busy, each, _LATER_MS)
            for each in rules.too_many_streams(connections)
        ),
    ]


def _of_messages(options: HAProxyOptions, places: int) -> list[str]:
    """As `haproxy_rules` has them for HTTP. HTTP/2 tells no length, but a message's prefix does: a
    body that is waited for and has another length than the prefix says does not fit the buffer. Nor
    may one that fills the buffer, whatever its prefix says: its caller may go on."""
    busy = "too many large messages and streams are on their way; send it again"
    return [
        f"acl stream {_STREAMS}",
        f"http-request wait-for-body time {options.body_s}s if !stream",
        "http-request set-var(txn.body_here) req.body_len",
        'http-request set-var(txn.body_said) req.body,bytes(1,4),be2dec("",4)'
        f",add({_PREFIX_BYTES})",
        "http-request set-var(txn.body_missing) var(txn.body_said),sub(txn.body_here)",
        *(f"acl unfinished var(txn.body_missing) -m int {than} 0" for than in ("lt", "gt")),
        "http-request set-var(txn.here) req.body_len,add(txn.head_bytes)",
        f"acl fills_the_buffer var(txn.here) -m int gt {_NEARLY_FULL_BYTES}",
        *rules.counted("unfinished or stream or fills_the_buffer"),
        *(_refused(_UNAVAILABLE, busy, each, _LATER_MS) for each in rules.too_many_bodies(places)),
    ]


def _own(status: int) -> str:
    later = {408: "1000", 503: "1000"}.get(status)
    pushback = later or ("%[var(txn.pushback)]" if status in (502, 504) else str(_NEVER))
    return _refusal(_OWN[status], rules.OWN_REFUSALS[status][0], pushback, shown="")


def _refused(status: int, message: str, condition: str, pushback_ms: int = _NEVER) -> str:
    return f"http-request return {_refusal(status, message, pushback_ms)} if {condition}"


def _refusal(status: int, message: str, pushback_ms: int | str, shown: str = "status 200 ") -> str:
    return (
        f"{shown}hdr grpc-status {status} hdr grpc-message '{message}'"
        f" hdr grpc-retry-pushback-ms {pushback_ms}"
    )
