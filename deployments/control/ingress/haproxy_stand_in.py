"""Answers at a node's port after HAProxy was killed, until Serve has started another HAProxy.

Serve starts another HAProxy only after half a minute. So the program that starts HAProxy leaves a
*watcher* process, which waits for HAProxy's end once its admin socket answers. The watcher also
kills a HAProxy whose admin socket is silent: it has one thread, so one that hangs answers nobody,
and Serve would act only after 45 s. Unless a newer HAProxy has taken over, the watcher starts a
*stand-in*: the same configuration with another admin socket. With the same socket, Serve would take
it for the lost HAProxy and could not reload it. The next HAProxy takes the port over without a gap,
and begins with the stand-in's gateways if Serve has not been told of any yet. A stand-in ends with
Ray's node process and after `LONGEST_S` at the latest, because an orderly stop kills HAProxy too.
HAProxy also ends with the node process, or it would hold a killed node's port. Standard library
only.
"""

from __future__ import annotations

import fcntl
import os
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import NoReturn

from deployments.control.ingress.haproxy_admin import command

LONGEST_S = 180.0
_KILLED = (-signal.SIGKILL, -signal.SIGTERM)
_LOOKS_S = 0.1
_ANSWER_S = 1.0  # at the admin socket; one that serves takes milliseconds at full load
_HUNG_LOOKS = 3  # in a row without an answer
_NODE_S = 1.0  # until the end of the node process is noticed
_GATEWAY = re.compile(r"^ *server SERVE_REPLICA_", re.MULTILINE)
_ADMIN = re.compile(r"^( *stats socket )(\S+)(.*)$", re.MULTILINE)
_STATE = re.compile(r"^ *load-server-state-from-file .*\n", re.MULTILINE)
# Lines in which two configurations must agree, so that one's gateways may be used in the other.
_FRAME = re.compile(r"^ *(?:bind|stats|maxconn|chroot|user|group) .*$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class HAProxyFiles:
    """The files beside the configuration at `config`. `current`: the id of the process that Serve
    started last; `stand_in`: the configuration of a stand-in; `process`: the stand-in's id."""

    config: str

    @property
    def current(self) -> str:
        return f"{self.config}.current"

    @property
    def stand_in(self) -> str:
        return f"{self.config}.stand-in"

    @property
    def process(self) -> str:
        return f"{self.config}.stand-in.pid"

    def running(self) -> int | None:
        """The stand-in's process id, if it runs."""
        return _running(self.process, self.stand_in)


# ---- what the next HAProxy begins with ----------------------------------------------------------


def begin_with_gateways(files: HAProxyFiles) -> None:
    """Put the stand-in's gateways into a configuration that has none."""
    with open(files.config, encoding="utf-8") as file:
        config = file.read()
    if (known := with_gateways(config, files)) != config:
        _write(files.config, known)


def with_gateways(config: str, files: HAProxyFiles) -> str:
    """The stand-in's configuration if it has gateways, `config` has none, and both have the same
    addresses, sockets and limits; else `config`."""
    if _GATEWAY.search(config) or files.running() is None:
        return config
    admin = _ADMIN.search(config)
    with suppress(OSError), open(files.stand_in, encoding="utf-8") as file:
        known = file.read()
        if admin and _GATEWAY.search(known):
            known = _ADMIN.sub(lambda _: admin[0], known, count=1)
            if _FRAME.findall(known) == _FRAME.findall(config):
                return known
    return config


def takes_over(arguments: Sequence[str], files: HAProxyFiles) -> list[str]:
    """`arguments`, with those that make any process that still holds the port hand it over and
    finish: a stand-in, or a HAProxy whose manager died."""
    stand_in, orphan = files.running(), _running(files.current, files.config)
    holders = [str(pid) for pid in (stand_in, orphan) if pid and str(pid) not in arguments]
    if not holders:
        return list(arguments)
    if "-sf" in arguments:
        after = arguments.index("-sf") + 1
        return [*arguments[:after], *holders, *arguments[after:]]
    sockets = ["-x", found] if stand_in and (found := _admin_socket(files.stand_in)) else []
    return [*arguments, *sockets, "-sf", *holders]


def _admin_socket(path: str) -> str | None:
    with suppress(OSError), open(path, encoding="utf-8") as file:
        if found := _ADMIN.search(file.read()):
            return found[2]
    return None


# ---- the watcher --------------------------------------------------------------------------------


def leave_watcher(
    program: str,
    arguments: Sequence[str],
    files: HAProxyFiles,
    each_look: Callable[[str], None] = lambda _: None,
) -> None:
    """Called by the process that becomes HAProxy: leaves a process of its own that outlives it.
    While a HAProxy serves, `each_look` gets its admin socket about once a second."""
    with open(files.config, encoding="utf-8") as file:
        config = file.read()
    node = _parent(os.getppid())
    if node <= 1:
        return  # there is no node process: whoever started HAProxy ends it
    with _locked(files.current):
        before = _number(files.current)
        _write(files.current, str(os.getpid()))
    watched = Watched(os.getpid(), os.pidfd_open(node), config, before, each_look)
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        return
    os.setsid()  # so that it outlives HAProxy's manager and its process group
    if os.fork():
        os._exit(0)
    # Without the file and the processes to take over from.
    own = [each for each in arguments if each in ("-db", "-dR")]
    _watch(watched, [program, *own], files)


@dataclass(frozen=True, slots=True)
class Watched:
    """A HAProxy that is watched."""

    pid: int
    node: int  # a handle (pidfd) of the node process that it belongs to
    config: str  # that it was started with
    before: int  # the process id of the newest HAProxy before it
    each_look: Callable[[str], None]

    def has_node(self) -> bool:
        """Whether the node process lives. A zombie counts as gone."""
        return not select.select([self.node], [], [], 0)[0]


def _watch(watched: Watched, own: list[str], files: HAProxyFiles) -> NoReturn:
    code = 1
    try:
        null = os.open(os.devnull, os.O_RDWR)
        os.dup2(null, sys.stdin.fileno())
        os.dup2(null, sys.stdout.fileno())
        if not _serves_then_ends(watched, files):
            with _locked(files.current):  # one that could not start replaces nobody
                if _is_newest(watched, files):
                    _write(files.current, str(watched.before))
        elif _is_newest(watched, files) and watched.has_node():
            _stand_in(watched, own, files)
        code = 0
    finally:
        os._exit(code)


def _serves_then_ends(watched: Watched, files: HAProxyFiles) -> bool:
    """Wait until it has ended; returns whether it ever served. Ends it when the node process is
    gone, and kills it when it hangs."""
    found = _ADMIN.search(watched.config)
    address = found[2] if found else ""
    serves, silent = False, 0
    with suppress(ProcessLookupError):
        handle = os.pidfd_open(watched.pid)
        while not select.select([handle], [], [], _NODE_S if serves else _LOOKS_S)[0]:
            answers = process_at(address, _ANSWER_S if serves else _LOOKS_S)
            serves = serves or answers == watched.pid
            silent = silent + 1 if serves and answers is None else 0
            if serves:
                watched.each_look(address)
            if not watched.has_node():
                signal.pidfd_send_signal(handle, signal.SIGTERM)
            elif silent >= _HUNG_LOOKS and _is_newest(watched, files):
                signal.pidfd_send_signal(handle, signal.SIGKILL)
        os.close(handle)
    return serves


def process_at(admin_socket: str, limit_s: float) -> int | None:
    """The process id of the HAProxy that answers there. None: somebody listens and does not answer.
    0: nobody listens, as between two HAProxies."""
    try:
        lines = command(admin_socket, "show info\n", limit_s).splitlines()
    except (TimeoutError, BlockingIOError):
        return None
    except OSError:
        return 0
    return next((int(x[5:]) for x in lines if x.startswith("Pid: ")), 0)


def _is_newest(watched: Watched, files: HAProxyFiles) -> bool:
    return _number(files.current) == watched.pid


def _stand_in(watched: Watched, command: list[str], files: HAProxyFiles) -> None:
    """Run a stand-in, until there is a newer HAProxy, the node process is gone, `LONGEST_S` have
    passed, or a stand-in ended by itself: that would happen again."""
    _write(files.stand_in, stand_ins(watched.config))
    ends = time.monotonic() + LONGEST_S
    was_killed = True
    while was_killed and _is_wanted(watched, files, ends):
        process = subprocess.Popen([*command, "-f", files.stand_in])
        _write(files.process, str(process.pid))
        while process.poll() is None and _is_wanted(watched, files, ends):
            time.sleep(_LOOKS_S)
            watched.each_look(_admin_socket(files.stand_in) or "")
        was_killed = process.returncode in _KILLED
        if process.returncode is None:
            _finish(process, watched, taken_over=not _is_newest(watched, files))


def stand_ins(config: str) -> str:
    """The configuration of a stand-in: with an admin socket of its own, and without the saved state
    of the gateways. A gateway that was just starting then would have to prove itself first."""

    def beside(line: re.Match[str]) -> str:
        """With another address of the same length: paths of sockets may not be long."""
        return f"{line[1]}{line[2][:-1]}{'3' if line[2][-1] == '2' else '2'}{line[3]}"

    return _ADMIN.sub(beside, _STATE.sub("", config), count=1)


def _is_wanted(watched: Watched, files: HAProxyFiles, ends: float) -> bool:
    return _is_newest(watched, files) and watched.has_node() and time.monotonic() < ends


def _finish(process: subprocess.Popen[bytes], watched: Watched, *, taken_over: bool) -> None:
    """A stand-in that a newer HAProxy has taken over from ends by itself with its last request, and
    may take as long as that HAProxy would."""
    while taken_over and watched.has_node():
        with suppress(subprocess.TimeoutExpired):
            process.wait(_NODE_S)
            return
    process.send_signal(signal.SIGKILL)
    process.wait()


# ---- processes ----------------------------------------------------------------------------------


def _running(path: str, argument: str) -> int | None:
    """The process that the file names, if it runs with that argument: ids are used again."""
    pid = _number(path)
    if not pid:
        return None
    with suppress(OSError), open(f"/proc/{pid}/cmdline", "rb") as file:
        return pid if argument.encode() in file.read().split(b"\0") else None
    return None


def _parent(pid: int) -> int:
    """The parent's id; 0 if the process has none or is gone."""
    with suppress(OSError), open(f"/proc/{pid}/stat", encoding="utf-8") as file:
        return int(file.read().rpartition(")")[2].split()[1])
    return 0


def _number(path: str) -> int:
    with suppress(OSError, ValueError), open(path, encoding="utf-8") as file:
        return int(file.read())
    return 0


def _write(path: str, text: str) -> None:
    made = f"{path}.{os.getpid()}"
    with open(made, "w", encoding="utf-8") as file:
        file.write(text)
    os.replace(made, path)


@contextmanager
def _locked(path: str) -> Iterator[None]:
    """Hold the file's lock, which everyone takes who reads it before writing it."""
    with open(f"{path}.lock", "a", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
