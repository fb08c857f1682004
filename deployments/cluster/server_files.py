"""The files of the servers on this machine: a state file each, and a folder while it runs.

`serve` writes one JSON file a port; `status`, `apply` and `stop` read it. A process is known by its
pid and when it started, in ticks since this machine's boot: neither a pid that the system gave away
again nor a step of the wall clock nor another machine with the same home is taken for ours. Files
are replaced atomically; those of dead servers are stale, not wrong.

The run folder holds sockets, HAProxy's files and a copy of the state, for a start whose state
folder is another. Its name is short because a Unix socket's path may have 97 characters in HAProxy,
68 of which Serve takes (the node's id).
Source: XDG Base Directory Specification for the state folder.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import stat
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import psutil

CREATED_TOLERANCE_S = 2.0  # the system derives it from a boot time that clock corrections move
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_START_FIELD = 22  # of /proc/PID/stat, proc(5)


class NoServer(Exception):
    """No server of ours, or no single one, is meant; the message says what to do."""


@dataclass(frozen=True, slots=True)
class ProcessMark:
    """`created_s`: seconds since the epoch. `started_ticks`, `boot_id`: when it started, exactly,
    in which boot of which machine; 0 and "" where the system does not say (other than Linux)."""

    pid: int
    created_s: float
    started_ticks: int = 0
    boot_id: str = ""

    @classmethod
    def of(cls, pid: int) -> ProcessMark:
        """Raises psutil.NoSuchProcess."""
        created_s = psutil.Process(pid).create_time()
        return cls(pid, created_s, _started_ticks(pid), boot_id())

    @property
    def of_this_boot(self) -> bool:
        return self.boot_id in ("", boot_id())

    def process(self) -> psutil.Process | None:
        """The process itself; None when it is gone, a zombie, or another of that pid."""
        try:
            found = psutil.Process(self.pid)
            if not self._is(found):
                return None
            return None if found.status() == psutil.STATUS_ZOMBIE else found
        except psutil.Error:
            return None

    def _is(self, found: psutil.Process) -> bool:
        if self.started_ticks:
            return self.of_this_boot and _started_ticks(self.pid) == self.started_ticks
        return abs(found.create_time() - self.created_s) <= CREATED_TOLERANCE_S


def boot_id() -> str:
    """A random name of this machine's boot; "" where the system has none."""
    try:
        return _BOOT_ID.read_text(encoding="ascii").strip()
    except OSError:
        return ""


def _started_ticks(pid: int) -> int:
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return 0
    # The second field is the name in parentheses, and may hold anything.
    return int(text.rpartition(")")[2].split()[_START_FIELD - 3])


@dataclass(frozen=True, slots=True)
class ServerState:
    """`port`: of the HTTP surface, the file's key. `server`: its host process. `server_id`: carried
    by the environment of every process of its cluster. `ports`: all it listens on, by setting."""

    port: int
    server: ProcessMark
    ray_address: str
    dashboard_url: str
    settings_path: str
    started_at_s: float
    server_id: str = ""
    ports: Mapping[str, int] = field(default_factory=dict)
    host: str = "127.0.0.1"

    @property
    def alive(self) -> bool:
        return self.server.process() is not None


def state_folder(environ: Mapping[str, str] | None = None) -> Path:
    """$XDG_STATE_HOME/headrace or ~/.local/state/headrace; not created here."""
    base = (os.environ if environ is None else environ).get("XDG_STATE_HOME", "")
    # The specification has relative paths ignored.
    root = Path(base) if os.path.isabs(base) else Path.home() / ".local" / "state"
    return root / "headrace"


def file_of(port: int, folder: Path) -> Path:
    return folder / f"{port}.json"


def write(state: ServerState, folder: Path) -> Path:
    """Replaces the port's file in one step. Readable by its owner alone."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    path = file_of(state.port, folder)
    handle, temporary = tempfile.mkstemp(dir=folder, prefix=f".{state.port}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            json.dump(asdict(state), stream, indent=2)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
    return path


def read(port: int, folder: Path) -> ServerState | None:
    """What the port's file says, alive or stale; None without one, or with one that is no state."""
    try:
        return _state(json.loads(file_of(port, folder).read_text(encoding="utf-8")))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def remove(port: int, folder: Path, server_id: str | None = None) -> None:
    """`server_id`: only that server's file; another may have started on the port meanwhile."""
    if server_id is not None and _is_of_another(port, folder, server_id):
        return
    with contextlib.suppress(NotADirectoryError):  # then there was no state either
        file_of(port, folder).unlink(missing_ok=True)


def _is_of_another(port: int, folder: Path, server_id: str) -> bool:
    state = read(port, folder)
    return state is not None and state.server_id != server_id


def listing(folder: Path) -> list[ServerState]:
    """All states, alive and stale, by port."""
    ports = sorted(int(path.stem) for path in folder.glob("*.json") if path.stem.isdecimal())
    return [state for port in ports if (state := read(port, folder)) is not None]


def known(port: int, folder: Path) -> list[ServerState]:
    """What the port's files say, alive or stale: of a server with this state folder, and of the one
    that made the port's run folder, if that is another."""
    states = [read(port, folder)]
    if _is_ours(run_folder(port)):
        states.append(read(port, run_folder(port)))
    by_id = {state.server_id: state for state in states if state is not None}
    return list(by_id.values())


def find(port: int | None, folder: Path) -> ServerState:
    """The running server on a port, or the only one there is. Raises NoServer."""
    running = [state for state in listing(folder) if state.alive]
    if port is not None:
        running = [state for state in running if state.port == port]
    if len(running) == 1:
        return running[0]
    if running:
        ports = ", ".join(str(state.port) for state in running)
        raise NoServer(f"several servers run here; name one with --port ({ports})")
    at = "here" if port is None else f"on port {port}"
    raise NoServer(f"no server runs {at}; start one with `headrace serve`")


def _state(data: dict[str, Any]) -> ServerState:
    return ServerState(**data | {"server": ProcessMark(**data["server"])})


def audit_file(port: int, folder: Path) -> Path:
    """What was changed at the servers on a port; it outlives them."""
    return folder / f"{port}.audit.jsonl"


def commands_audit_file(folder: Path) -> Path:
    """What this machine's command line changed elsewhere: in files, and at clusters."""
    return folder / "commands.audit.jsonl"


def revoked_keys(folder: Path) -> Path:
    """Hashes of keys that were revoked on this machine, a line each: of all servers, for good."""
    return folder / "revoked-keys"


def run_folder(port: int) -> Path:
    return Path("/tmp") / f"headrace-{os.getuid()}-{port}"


def make_run_folder(port: int) -> Path:
    """The folder, for its owner alone. Raises PermissionError when it is another user's."""
    path = run_folder(port)
    path.mkdir(mode=0o700, exist_ok=True)
    if not _is_ours(path):
        raise PermissionError(f"{path} belongs to another user; remove it")
    return path


def _is_ours(folder: Path) -> bool:
    try:
        found = folder.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid()


def remove_run_folder(port: int, server_id: str | None = None) -> None:
    """As `remove`."""
    if server_id is not None and _is_of_another(port, run_folder(port), server_id):
        return
    shutil.rmtree(run_folder(port), ignore_errors=True)


def control_socket(port: int) -> Path:
    """Where the host of the server on `port` answers the command line."""
    return run_folder(port) / "control.sock"
