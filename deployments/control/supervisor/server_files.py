"""The files of the servers on this machine: state and log each, and a run folder while one runs.

`serve` writes one JSON file per port; `status`, `apply` and `stop` read it. A process is identified
by its pid and its start in ticks since this machine's boot. So neither a pid that was used again,
nor a step of the wall clock, nor another machine with the same home is mistaken for it. Files are
replaced atomically; the file of a dead server is stale, not wrong.

The run folder holds sockets, HAProxy's files and a copy of the state, for a later start whose state
folder is another. Its name is short, because HAProxy allows 97 characters for the path of a Unix
socket, and Serve takes 68 of them (the node's id).
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

import psutil

from deployments.process import line_files

CREATED_TOLERANCE_S = 2.0  # the system derives it from the boot time, which clock steps move
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_START_FIELD = 22  # of /proc/PID/stat, see proc(5)


class NoServer(Exception):
    """There is no server, or more than one that could be meant. The message says what to do."""


@dataclass(frozen=True, slots=True)
class ProcessMark:
    """Identifies a process."""

    pid: int
    created_s: float  # since the epoch
    started_ticks: int = 0  # since the boot; 0: the system does not say (other than Linux)
    boot_id: str = ""  # of the machine's boot; "": the system does not say

    @classmethod
    def of(cls, pid: int) -> ProcessMark:
        """The mark of a running process. Raises psutil.NoSuchProcess."""
        created_s = psutil.Process(pid).create_time()
        return cls(pid, created_s, _started_ticks(pid), boot_id())

    @property
    def of_this_boot(self) -> bool:
        return self.boot_id in ("", boot_id())

    def process(self) -> psutil.Process | None:
        """The process; None if it is gone, a zombie, or another process with that pid."""
        try:
            found = psutil.Process(self.pid)
            if self.started_ticks:
                same = self.of_this_boot and _started_ticks(self.pid) == self.started_ticks
            else:
                same = abs(found.create_time() - self.created_s) <= CREATED_TOLERANCE_S
            return found if same and found.status() != psutil.STATUS_ZOMBIE else None
        except psutil.Error:
            return None


def boot_id() -> str:
    """A random id of this machine's boot; "" if the system has none."""
    try:
        return _BOOT_ID.read_text(encoding="ascii").strip()
    except OSError:
        return ""


def _started_ticks(pid: int) -> int:
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return 0
    # The second field is the name in parentheses, which may hold anything.
    return int(text.rpartition(")")[2].split()[_START_FIELD - 3])


@dataclass(frozen=True, slots=True)
class ServerState:
    """One server on this machine."""

    port: int  # of its HTTP interface; the file's key
    server: ProcessMark  # its host process
    ray_address: str
    dashboard_url: str
    settings_path: str
    started_at_s: float
    server_id: str = ""  # in the environment of every process of its cluster
    ports: Mapping[str, int] = field(default_factory=dict)  # all that it listens on, by setting
    host: str = "127.0.0.1"

    @property
    def alive(self) -> bool:
        return self.server.process() is not None


def state_folder(environ: Mapping[str, str] | None = None) -> Path:
    """$XDG_STATE_HOME/headrace or ~/.local/state/headrace. Not created here."""
    base = (os.environ if environ is None else environ).get("XDG_STATE_HOME", "")
    # By the specification, relative paths are ignored.
    root = Path(base) if os.path.isabs(base) else Path.home() / ".local" / "state"
    return root / "headrace"


def file_of(port: int, folder: Path) -> Path:
    return folder / f"{port}.json"


def write(state: ServerState, folder: Path) -> Path:
    """Replace the port's file atomically. Readable by its owner only."""
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
    """The state in the port's file, alive or stale; None if there is no valid file."""
    try:
        data = json.loads(file_of(port, folder).read_text(encoding="utf-8"))
        return ServerState(**data | {"server": ProcessMark(**data["server"])})
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def remove(port: int, folder: Path, server_id: str | None = None) -> None:
    """Delete the port's file. `server_id`: only if it is that server's; another server may have
    started on the port meanwhile."""
    if server_id is not None and _is_of_another(port, folder, server_id):
        return
    with contextlib.suppress(NotADirectoryError):  # then there was no file either
        file_of(port, folder).unlink(missing_ok=True)


def _is_of_another(port: int, folder: Path, server_id: str) -> bool:
    state = read(port, folder)
    return state is not None and state.server_id != server_id


def listing(folder: Path) -> list[ServerState]:
    """All states, alive and stale, by port."""
    ports = sorted(int(path.stem) for path in folder.glob("*.json") if path.stem.isdecimal())
    return [state for port in ports if (state := read(port, folder)) is not None]


def known(port: int, folder: Path) -> list[ServerState]:
    """The states of servers on the port, alive or stale: of the one with this state folder, and of
    the one that made the port's run folder, if that is another."""
    states = [read(port, folder)]
    if _is_ours(run_folder(port)):
        states.append(read(port, run_folder(port)))
    by_id = {state.server_id: state for state in states if state is not None}
    return list(by_id.values())


def find(port: int | None, folder: Path) -> ServerState:
    """The running server on the port; without a port, the only running one. Raises NoServer."""
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


def audit_file(port: int, folder: Path) -> Path:
    """The audit log of the servers on a port; it outlives them."""
    return folder / f"{port}.audit.jsonl"


def log_file(port: int, folder: Path) -> Path:
    """The log of the servers on a port; it outlives them."""
    return folder / f"{port}.log"


def commands_audit_file(folder: Path) -> Path:
    """The audit log of what this machine's command line changed elsewhere: in files and on
    clusters."""
    return folder / "commands.audit.jsonl"


def revoked_keys(folder: Path) -> Path:
    """Hashes of keys that were revoked on this machine, one a line, for all servers and for
    ever."""
    return folder / "revoked-keys"


def run_folder(port: int) -> Path:
    return Path("/tmp") / f"headrace-{os.getuid()}-{port}"


def make_run_folder(port: int) -> Path:
    """Make the run folder, accessible to its owner only. Raises PermissionError if it is another
    user's."""
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
    """Delete the run folder. `server_id` as in `remove`."""
    if server_id is not None and _is_of_another(port, run_folder(port), server_id):
        return
    shutil.rmtree(run_folder(port), ignore_errors=True)


def control_socket(port: int) -> Path:
    """The socket at which the host of the server on `port` answers the command line."""
    return run_folder(port) / "control.sock"


_MAX_BYTES = 8 << 20


class ServerLog:
    """Appends lines to the file at `path`. Belongs to one thread."""

    def __init__(self, path: Path, max_bytes: int = _MAX_BYTES) -> None:
        self._path, self._most = path, max_bytes

    def write(self, line: str) -> None:
        with contextlib.suppress(OSError):
            if self._path.exists() and self._path.stat().st_size >= self._most:
                os.replace(self._path, older_log(self._path))
            line_files.append(self._path, line.encode("utf-8", "replace") + b"\n")


def older_log(path: Path) -> Path:
    """The file with the lines before those at `path`."""
    return path.with_name(f"{path.name}.1")
