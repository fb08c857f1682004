"""Which requests HAProxy takes, and from whom: the rules of the frontend that callers meet.

HAProxy refuses what two readers may understand differently: a request without Host, with two keys,
with a header name other than letters, digits and dashes, or with a path that climbs or cannot be
decoded. It removes `Upgrade`, takes `path_prefix` off a path that has it, and lets pages read its
refusals as `gateway.cors` says. It bounds connections and unfinished bodies by address, so that
nobody takes the places of all (`of_connections`, `_of_bodies`). A single address may still have
four fifths of the connections and half of the places for bodies, because behind a load balancer all
callers share one. `trusted_proxies` lists whose word for the caller's address is taken (`_hops`).
An IPv6 address counts by its first 64 bits: one network has 2^64 of the rest (RFC 6177).
Source: HAProxy 2.8's configuration manual, 4.2, 7.3.6; RFC 7239. Its answers: docs/security.md.
"""

from __future__ import annotations

from collections.abc import Sequence

from deployments.control.ingress.haproxy_options import HAProxyOptions

FRONTEND = "http_frontend"
GRPC_FRONTEND = "headrace_grpc"  # Serve has a grpc_frontend of its own
BACKEND = "http-gateway"  # as Serve names that of the gateways
_MAX_TAKEN = 0.8  # of the connections, before a source is held against its share
_SOURCE_SHARE = 0.1
# Twice HAProxy's own, so that heads that are too large get an answer that says so: of one that does
# not fit HAProxy says only that it is bad, in HTML.
BUFFER_BYTES = 32_768
PARSED_HEADERS = 256  # for the same reason; HAProxy's own is 101, the first line included
_MOST_TO_FALLBACK_BYTES = 8 << 20
_CHUNKED_BYTES = 8192  # a chunked body that has so much in the buffer may have more
_CALLER_SILENCE_S = 30  # what a caller was sent and has not acknowledged for so long
ACKNOWLEDGED = f"tcp-ut {_CALLER_SILENCE_S}s"
_RETRY_AFTER_S = 1
_SOURCES = "headrace-bodies-of-source"
_ALL = "headrace-bodies"
_STREAMS_OF_SOURCE, _STREAMS = "headrace-streams-of-source", "headrace-streams"
MAX_STREAMS = 100  # of a connection that speaks HTTP/2 (RFC 9113 §6.5.2 advises as many at least)
COUNTERS = 5  # that rules of one request may use; HAProxy's own number is 3
_NETWORK = "ipmask(32,64)"  # of IPv4, also where it is written as IPv6, and of IPv6
_SOURCE = f"src,{_NETWORK}"
_CALLER = f"var(txn.caller),{_NETWORK}"
_IS_ADDRESS = "-m ip 0.0.0.0/0 ::/0"
# Quotes that a caller left open would take in what proxies added to its line: what they may hide in
# becomes a word that is no address. `X-Forwarded-For` has no quotes at all; of `Forwarded` an
# escape, which no address needs, and then the first of an odd number. Without recursion.
_OPEN_QUOTES = (
    ("x-forwarded-for", '^.*"(.*)', r"unknown\1"),
    ("forwarded", r"^.*\\(.*)", r"_\1"),
    ("forwarded", '^([^"]*+)"((?:[^"]*+"[^"]*+")*+[^"]*+)$', r"\1_\2"),
)
# HAProxy reads an IPv4 address with its port and an IPv6 one in brackets, but not both together.
_IPV6_AND_PORT = r"replace-value x-forwarded-for '^\[([0-9A-Fa-f:.]+)\]:[0-9]+$' '\1'"
HOPS = 4  # of trusted proxies, one behind the other (gateway/http/forwarded.py)
_A_LINE = 16  # words of a list: HAProxy takes 64 a line, of 2,048 characters
MAX_HEAD_BYTES, MAX_HEADERS = 15_360, 100  # the gateways' own (strict_protocol.py)
# By name: status, message, and OpenAI's code (contract/errors.py).
_REFUSALS = {
    "no_host": (400, "a request must name its Host", "invalid_request"),
    "two_keys": (400, "a request may have one Authorization header, and one x-api-key",
                 "invalid_request"),
    "path": (404, "no such path", "not_found"),
    "long_url": (414, f"the URL and the headers have more than {MAX_HEAD_BYTES} bytes",
                 "uri_too_long"),
    "large_head": (431, f"the URL and the headers have more than {MAX_HEAD_BYTES} bytes",
                   "headers_too_large"),
    "many_headers": (431, f"the request has more than {MAX_HEADERS} headers",
                     "headers_too_large"),
    "certificate": (403, "the operator pages need a client certificate", "forbidden"),
    "streams": (503, "too many requests are on their way; send it again", "overloaded"),
    "bodies": (503, "too many large bodies are on their way; send it again", "overloaded"),
}  # fmt: skip
NO_REPLAY = "http-request disable-l7-retry if { req.hdr(x-idempotent) -m str -i false }"
OWN_REFUSALS = {
    400: ("the request is malformed", "invalid_request"),
    403: ("names of headers have letters, digits and dashes alone", "forbidden"),
    408: ("the request did not arrive in time", "request_timeout"),
    500: ("HAProxy cannot answer the request", "internal_error"),
    502: ("the gateway ended before it had answered", "gateway_lost"),
    503: ("no gateway can take the request now", "overloaded"),
    504: ("the gateway has not answered in time", "deadline_exceeded"),
}
"""What HAProxy refuses without a rule, by status. HAProxy takes a backend's answer before a
frontend's, so they are in the frontends alone, each of which has a shape of its own."""
_LATER = (408, 502, 503, 504)
# What stands around a message in OpenAI's and in Anthropic's error object, on paths of their APIs;
# elsewhere nothing does (gateway/http/protocols/error_shapes.py). In variables, since HAProxy makes
# some answers when the path is gone.
_MESSAGES = "/v1/messages"
_ANTHROPIC = f"{{ path {_MESSAGES} }} or {{ path_beg {_MESSAGES}/ }}"
_OPENAI = (
    "{ path /v1 /rerank /v2/rerank /embed_sparse /tokenize /detokenize } or { path_beg /v1/ } "
    f"!{{ path,url_dec -m end :predict :classify }} !{{ path {_MESSAGES} }} "
    f"!{{ path_beg {_MESSAGES}/ }}"
)
_SHAPES = {
    _OPENAI: {
        "object": '{"message": ',
        "type": ', "type": "',
        "code": '", "param": null, "code": "',
        "end": '"}',
    },
    _ANTHROPIC: {"object": '{"message": ', "kind": ', "type": "', "shut": '"}, "type": "error"'},
}
_TYPES = {403: "permission_error"}
_KINDS = {
    403: "permission_error", 404: "not_found_error", 503: "overloaded_error", 504: "timeout_error",
}  # fmt: skip
_OVERLOADED = 529  # Anthropic's; of a gateway's answers, which name the request, the gateway's
# Of unfinished bodies, and of HTTP/2's streams: requests, by where they come from and of all.
TABLES = f"""\
backend {_SOURCES}
    stick-table type ipv6 size 100k expire 60s store conn_cur
backend {_ALL}
    stick-table type integer size 1 expire 60s store conn_cur
backend {_STREAMS_OF_SOURCE}
    stick-table type ipv6 size 100k expire 60s store conn_cur
backend {_STREAMS}
    stick-table type integer size 1 expire 60s store conn_cur
"""


def listening(options: HAProxyOptions, combined: str) -> str:
    """What stands behind the frontend's address. Without TLS HTTP/1.1 alone: HAProxy would take
    HTTP/2 from anybody who begins with it. `combined`: certificate and key."""
    if not options.certificate:
        return bound_as("h1")
    words = f"{ACKNOWLEDGED}{encrypted('h2,http/1.1', combined)}"
    if options.client_ca:
        verify = "optional" if options.operators_only else "required"
        words += f" ca-file {options.client_ca} verify {verify}"
    return words


def bound_as(protocol: str) -> str:
    return f"proto {protocol} {ACKNOWLEDGED}"


def encrypted(protocol: str, combined: str) -> str:
    return f" ssl crt {combined} ssl-min-ver TLSv1.2 alpn {protocol}"


def frontend(options: HAProxyOptions, connections: int, gateways: int) -> str:
    """The lines below the frontend's `bind`. `connections`: as many as HAProxy takes; `gateways`:
    that it knows."""
    lines = [
        *(f"http-error {own_refusal(status)}" for status in OWN_REFUSALS),
        "stick-table type ipv6 size 100k expire 60s store conn_cur",
        *of_connections(options, connections),
        *sizes(),
        *from_proxies(options, "https" if options.certificate else "http"),
        *_public_path(options),
        *_for_pages(options),
        *_unambiguous(),
        *_of_operators(options),
        *_of_streams(options, connections),
        NO_REPLAY,
        *_of_bodies(options, options.max_requests * max(gateways, 1)),
        *_compression(options),
    ]
    return "".join(f"    {line}\n" for line in lines)


def of_connections(options: HAProxyOptions, connections: int) -> list[str]:
    """Bounds by address. One table counts an address's connections at all ports."""
    # When four fifths of all connections are taken, addresses that have a tenth are refused.
    taken, share = int(connections * _MAX_TAKEN), int(connections * _SOURCE_SHARE)
    own, most = _unless_trusted(options), options.source_connections
    bound = [f"tcp-request connection reject if {{ sc0_conn_cur gt {most} }}"] if most else []
    held = f"fe_conn({FRONTEND})"
    other: list[str] = []
    if options.grpc_port:
        other = [f"tcp-request connection set-var(sess.grpc) fe_conn({GRPC_FRONTEND})"]
        held += ",add(sess.grpc)"
    return [
        *_trust(options),
        f"tcp-request connection track-sc0 {_SOURCE} table {FRONTEND}{own}",
        *bound,
        *other,
        f"tcp-request connection reject if {{ {held} gt {taken} }} {{ sc0_conn_cur gt {share} }}",
    ]


def _of_streams(options: HAProxyOptions, connections: int) -> list[str]:
    """Of HTTP/2, which TLS alone lets in at the frontend of HTTP."""
    if not options.certificate:
        return []
    return [
        *STREAMS_COUNTED,
        *(_refused("streams", each) for each in too_many_streams(connections)),
    ]


_HTTP2 = "{ fc_http_major 2 }"
STREAMS_COUNTED = (
    f"http-request track-sc3 {_CALLER} table {_STREAMS_OF_SOURCE} if {_HTTP2}",
    f"http-request track-sc4 int(0) table {_STREAMS} if {_HTTP2}",
)
"""HAProxy counts a stream until it is done with it, also after its caller has reset it, so resets
make no room for more (CVE-2023-44487)."""


def too_many_streams(connections: int) -> tuple[str, str]:
    """The two conditions under which a stream is refused. Streams are held as connections are, at
    all ports together, since one that sends nothing takes as much memory."""
    of_source = f"sc_conn_cur(3,{_STREAMS_OF_SOURCE})"
    of_all = f"sc_conn_cur(4,{_STREAMS})"
    taken, share = int(connections * _MAX_TAKEN), int(connections * _SOURCE_SHARE)
    return (
        f"{_HTTP2} {{ {of_all} gt {connections} }}",
        f"{_HTTP2} {{ {of_all} gt {taken} }} {{ {of_source} gt {share} }}",
    )


def sizes() -> list[str]:
    """Of what the caller sent, before anything is added to it."""
    return [
        "http-request set-var(txn.url_bytes) url,length",
        "http-request set-var(txn.head_bytes) req.hdrs,length,add(txn.url_bytes)",
        "http-request set-var(txn.headers) req.fhdr_cnt",
    ]


def _trust(options: HAProxyOptions) -> list[str]:
    return [f"acl trusted_proxy src {words}" for words in _lines(options.trusted_proxies)]


def from_proxies(options: HAProxyOptions, scheme: str) -> list[str]:
    """Makes one address of what proxies said of the caller, and one header each of the scheme, host
    and prefix that it used. Who is not trusted says nothing of them."""
    own = _unless_trusted(options)
    said = ("x-forwarded-prefix", "x-forwarded-host", "forwarded")
    lines = [
        "http-request set-var(txn.caller) src",
        f"http-request set-header x-forwarded-proto {scheme}{own}",
        *(f"http-request del-header {name}{own}" for name in said),
    ]
    if options.trusted_proxies:
        lines += _hops(options)
        element = "var(txn.element),rfc7239_field"
        for name, field in (("proto", "proto"), ("host", "host")):
            lines.append(
                f"http-request set-header x-forwarded-{name} %[{element}({field})] "
                f"if {{ {element}({field}) -m found }} !{{ req.hdr(x-forwarded-{name}) -m found }}"
            )
        lines.append("http-request del-header forwarded")
        if scheme == "https":  # of a proxy that says nothing of it, the connection to here
            said_none = "!{ req.hdr(x-forwarded-proto) -m found }"
            lines.append(f"http-request set-header x-forwarded-proto {scheme} if {said_none}")
    return [*lines, "http-request set-header x-forwarded-for %[var(txn.caller)]"]


def _hops(options: HAProxyOptions) -> list[str]:
    """From the nearest proxy on: who is named by one that is trusted, until one is not, or names no
    address. `Forwarded` counts where no `X-Forwarded-For` is there: a proxy that writes the one
    leaves the other as its caller wrote it."""
    other = "!{ req.hdr(x-forwarded-for) -m found }"
    lines = [
        f"http-request replace-header {name} '{open_}' '{closed}' if trusted_proxy"
        for name, open_, closed in _OPEN_QUOTES
    ]
    lines.append(f"http-request {_IPV6_AND_PORT} if trusted_proxy")
    before = "trusted_proxy"
    for hop in range(1, HOPS + 1):
        # `rfc7239_field` knows names in lower case alone.
        element = f"req.hdr(forwarded,-{hop}),lower"
        found = f"{{ var(txn.hop{hop}) {_IS_ADDRESS} }}"
        lines += [
            f"http-request set-var(txn.hop{hop}) req.hdr_ip(x-forwarded-for,-{hop}) if {before}",
            f"http-request set-var(txn.hop{hop}) {element},rfc7239_field(for),rfc7239_n2nn "
            f"if {before} {other}",
            f"http-request set-var(txn.caller) var(txn.hop{hop}) if {before} {found}",
            f"http-request set-var(txn.element) {element} if {before} {found} {other}",
        ]
        # In order: a word that is no address ends it, since what stands before it was the caller's.
        lines += [
            f"http-request set-var(txn.goes_on{hop}) bool(true) "
            f"if {before} {found} {{ var(txn.hop{hop}) -m ip {words} }}"
            for words in _lines(options.trusted_proxies)
        ]
        before = f"{{ var(txn.goes_on{hop}) -m bool }}"
    return lines


def _public_path(options: HAProxyOptions) -> list[str]:
    """Takes the prefix off, and says so to the gateway, which names it in its documents."""
    if not (prefix := options.path_prefix):
        return []
    had = "if { var(txn.prefixed) -m bool }"
    return [
        f"http-request set-var(txn.prefixed) bool(true) if {{ path {prefix} }}",
        f"http-request set-var(txn.prefixed) bool(true) if {{ path_beg {prefix}/ }}",
        f"http-request set-header x-forwarded-prefix %[req.hdr(x-forwarded-prefix)]{prefix} {had}",
        f"http-request set-path / if {{ path {prefix} }}",
        f"http-request set-path %[path,bytes({len(prefix)})] {had} {{ path_beg {prefix}/ }}",
    ]


def _for_pages(options: HAProxyOptions) -> list[str]:
    """What gateways say to pages of other origins (gateway/http/cors.py), of answers that no
    gateway gave. Answers of other applications of Serve are theirs: they have other backends."""
    if not options.cors_origins:
        return []
    any_origin = options.cors_origins == ("*",)
    elsewhere = "!{ path,url_dec -m beg /admin }"
    ours = f"{{ be_name {FRONTEND} {BACKEND} default_backend }}"
    own = "if { var(txn.says_page) -m bool }"
    name = "http-after-response set-header access-control-"
    lines = [
        f"http-request set-var(txn.page) req.fhdr(origin,1) "
        f"if {{ req.fhdr(origin,1) -m str {words} }} {elsewhere}"
        for words in _lines(options.cors_origins)
    ]
    if any_origin:
        lines = [f"http-request set-var(txn.page) str(*) if {elsewhere}"]
    lines += [
        "http-after-response set-var(txn.says_page) bool(true) if { var(txn.page) -m found } "
        f"!{{ res.hdr(access-control-allow-origin) -m found }} {ours}",
        f"{name}allow-origin %[var(txn.page)] {own}",
        f"{name}expose-headers retry-after {own}",
    ]
    if options.cors_credentials:
        lines.append(f"{name}allow-credentials true {own}")
    if not any_origin:
        lines.append(
            "http-after-response add-header vary Origin if !{ res.hdr(vary) -m str -i origin } "
            f"{ours}"
        )
    return lines


def _lines(words: Sequence[str]) -> list[str]:
    """A list's words, as many as a line takes."""
    return [" ".join(words[at : at + _A_LINE]) for at in range(0, len(words), _A_LINE)]


def _unambiguous() -> list[str]:
    """What is refused, since two readers may understand it differently."""
    large = f"{{ var(txn.head_bytes) -m int gt {MAX_HEAD_BYTES} }}"
    long = f"{{ var(txn.url_bytes) -m int gt {MAX_HEAD_BYTES // 2} }}"
    climbs = "/../ /./ // %2e %2E %2f %2F %5c %5C %00"
    return [
        *(
            f"http-request set-var-fmt(txn.{name}) '{text}' if {paths}"
            for paths, shape in _SHAPES.items()
            for name, text in shape.items()
        ),
        f"http-after-response set-status {_OVERLOADED} if {{ var(txn.kind) -m found }} "
        "{ status 503 } !{ res.hdr(x-request-id) -m found }",
        _refused("long_url", f"{large} {long}"),
        _refused("large_head", large),
        _refused("many_headers", f"{{ var(txn.headers) -m int gt {MAX_HEADERS} }}"),
        # A load balancer's check may be of HTTP/1.0.
        _refused("no_host", "!{ req.hdr(host) -m found } !{ path /-/healthz }"),
        _refused("two_keys", "{ req.fhdr_cnt(authorization) gt 1 }"),
        _refused("two_keys", "{ req.fhdr_cnt(x-api-key) gt 1 }"),
        _refused("path", f"{{ path -m sub {climbs} }}"),
        _refused("path", "{ path_end /.. /. }"),
        # What cannot be decoded is no sample, and no rule about the decoded path would find it.
        _refused("path", "!{ path,url_dec -m found }"),
        # Serve's own list of routes and applications, which needs no key.
        _refused("path", "{ path,url_dec -m beg /-/ } !{ path /-/healthz }"),
        # Nothing upgrades, and who reads `Upgrade` reads no body behind it: a gateway would take
        # the body for its next request, which no rule here has seen.
        "http-request del-header upgrade",
        "http-request del-header http2-settings",
    ]


def _of_operators(options: HAProxyOptions) -> list[str]:
    return [
        # As a server may read it: decoded, and in any case. Encoded slashes and dots were refused.
        *[_refused("certificate", "{ path,url_dec -m beg -i /admin } !{ ssl_c_used }")]
        * bool(options.client_ca and options.operators_only),
    ]


def _compression(options: HAProxyOptions) -> list[str]:
    """Of whole JSON, for who asks: no event of a stream, no tensor's bytes. It is decided before
    these rules; what is to stay as it is, a gateway says by `no-transform`
    (deployments/gateway/http/exchange.py), which nobody else needs to read.

    `identity` is not named: who asks for nothing would then get chunks, too.
    """
    said = (
        "http-response del-header cache-control if { res.hdr(cache-control) -m str no-transform }"
    )
    if not options.compression:
        return [said]
    return [said, "compression algo gzip", "compression type application/json"]


def _of_bodies(options: HAProxyOptions, places: int) -> list[str]:
    """Waits for what fits the buffer, and bounds what does not. A length that the gateway refuses
    by the head alone is not waited for: nobody shall be asked to send it."""
    # A body that fits `BUFFER_BYTES` is read whole before a gateway hears of it, so a slow one
    # holds only a connection here. A larger one holds one of a gateway's places while it comes in;
    # the gateway decides how fast it must come. So larger bodies are counted by address. Over half
    # of all places, addresses that have a sixteenth are refused; over three quarters, all are. A
    # quarter stays for requests that are whole. A count ends with the request, not with its body:
    # HAProxy has no rule for that.
    much, most = too_many_bodies(places)
    no_length = "http-request set-var(txn.no_length) bool(true) if"
    return [
        f"{no_length} {{ req.hdr(transfer-encoding) -m found }}",
        # HTTP/2 has no chunks; a request that has no body is whole at once.
        f"{no_length} {{ fc_http_major 2 }} !{{ req.hdr(content-length) -m found }}",
        "acl no_length var(txn.no_length) -m bool",
        f"http-request wait-for-body time {options.body_s}s "
        f"if {{ req.body_size 1:{options.max_body_bytes} }} or no_length",
        "http-request set-var(txn.body_here) req.body_len",
        "http-request set-var(txn.body_missing) req.body_size,sub(txn.body_here)",
        "acl unfinished var(txn.body_missing) -m int gt 0",
        f"acl much_here req.body_len gt {_CHUNKED_BYTES}",
        *counted("unfinished"),
        *counted("no_length much_here"),
        _refused("bodies", much),
        _refused("bodies", most),
    ]


def counted(condition: str) -> list[str]:
    """Counts the request as one whose body is unfinished, by where it comes from and of all."""
    return [
        f"http-request track-{which} table {table} if {condition}"
        for which, table in ((f"sc1 {_CALLER}", _SOURCES), ("sc2 int(0)", _ALL))
    ]


def too_many_bodies(places: int) -> tuple[str, str]:
    """The two conditions under which a body that is unfinished is refused."""
    of_source, of_all = f"sc1_conn_cur({_SOURCES})", f"sc2_conn_cur({_ALL})"
    return (
        f"{{ {of_all} gt {places // 2} }} {{ {of_source} gt {max(places // 16, 1)} }}",
        f"{{ {of_all} gt {max(places * 3 // 4, 1)} }}",
    )


def _refused(why: str, condition: str) -> str:
    return f"http-request return {refusal(*_REFUSALS[why])} if {condition}"


def gateways_up(gateways: Sequence[str]) -> str:
    """Lines of the gateways' section: `gateway_up`, whether HAProxy may send to one of them."""
    return "".join(f"    acl gateway_up srv_is_up({BACKEND}/{name})\n" for name in gateways)


def of_fallback(gateways: Sequence[str]) -> str:
    """Lines of the gateways' section: what Serve's proxy, the fallback, does not get. Bodies of
    30 MB never arrive through it (16 MB do), and one without a length may be as long."""
    down = " !gateway_up" * bool(gateways)
    return "".join(
        f"    http-request return {own_refusal(503)} if {each}{down}\n"
        for each in (
            f"{{ req.body_size gt {_MOST_TO_FALLBACK_BYTES} }}",
            f"{{ var(txn.no_length) -m bool }} {{ req.body_len gt {_CHUNKED_BYTES} }}",
        )
    )


def own_refusal(status: int) -> str:
    """The words of what HAProxy answers by itself with this status."""
    message, code = OWN_REFUSALS[status]
    return refusal(status, message, code, later=status in _LATER)


def refusal(status: int, message: str, code: str, later: bool | None = None) -> str:
    """The words of a rule that answers so, in the shape of the API that the path belongs to.
    `later`: with Retry-After; by default a 503 alone has it."""
    wrong = "invalid_request_error"
    kind = _TYPES.get(status, "server_error" if status >= 500 else wrong)
    other = _KINDS.get(status, "api_error" if status >= 500 else wrong)
    rest = f"%[var(txn.type),concat({kind},txn.code,{code}),concat(,txn.end)]"
    rest += f"%[var(txn.kind),concat({other},txn.shut)]"
    body = f'{{"error": %[var(txn.object)]"{message}"{rest}}}'
    ask_again = f" hdr Retry-After {_RETRY_AFTER_S}" * (status == 503 if later is None else later)
    return f"status {status} content-type application/json lf-string '{body}'{ask_again}"


def _unless_trusted(options: HAProxyOptions) -> str:
    return " unless trusted_proxy" if options.trusted_proxies else ""
