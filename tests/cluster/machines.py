"""Machines that are namespaces of this one, each with a network, processes and mounts of its own.

Every machine hangs by a virtual cable on one switch, a bridge in a namespace of its own, and the
process that made the lab has a cable to it too. A machine's `/tmp` and `/dev/shm` are its own; the
rest of the file system is this machine's. Nothing has a name outside and nothing has to be removed:
each namespace lives as long as its first process, those end with the thread that started them
(`PR_SET_PDEATHSIG`), and with the last of them the kernel takes cables, bridge and mounts away.
Addresses of the link layer are fixed, so that a machine that is cut off is silent: nobody hears of
it from an address that was not resolved.
Source: namespaces(7), unshare(1), prctl(2), ip-rule(8).
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import secrets
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

CHECKOUT = Path(__file__).parents[2]
_INIT = Path(__file__).with_name("machine_init.py")
_PR_SET_PDEATHSIG = 1
_FIRST_HOST = 11
_NOBODY = 254
_LOST_TABLE = "100"
_BRIDGE = "switch"
_ENDS_S = 10.0


class CannotMakeMachines(Exception):
    """This process may not make namespaces; the message says why."""


def _dies_with_its_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _run(*command: str) -> None:
    try:
        subprocess.run(command, check=True, capture_output=True, text=True)
    except FileNotFoundError as fault:
        raise CannotMakeMachines(f"{command[0]} is not installed") from fault
    except subprocess.CalledProcessError as fault:
        raise CannotMakeMachines(f"{' '.join(command)}: {fault.stderr.strip()}") from fault


@dataclass(frozen=True, slots=True)
class Address:
    """On the switch: IPv4 and, made from it, the link layer's."""

    subnet: int
    host: int

    @property
    def ip(self) -> str:
        return f"10.{200 + self.subnet // 250}.{self.subnet % 250}.{self.host}"

    @property
    def mac(self) -> str:
        return f"02:00:00:{self.subnet // 250:02x}:{self.subnet % 250:02x}:{self.host:02x}"

    @property
    def nobody(self) -> Address:
        """On the same switch, and lost is what goes there."""
        return Address(self.subnet, _NOBODY)


class Machine:
    """`name` is also its host name. Of one `Lab`."""

    def __init__(self, name: str, address: Address, network: Network) -> None:
        self.name = name
        self.address = address
        self._network = network
        words = ["--net", "--pid", "--mount", "--uts", "--ipc", "--mount-proc"]
        self._outer, self.pid = _namespaces(words, name, str(CHECKOUT))

    @property
    def ip(self) -> str:
        return self.address.ip

    @property
    def root(self) -> Path:
        """Its file system, as seen from here."""
        return Path(f"/proc/{self.pid}/root")

    def command(self, *command: str) -> list[str]:
        """What runs `command` on this machine."""
        own = ["--net", "--pid", "--mount", "--uts", "--ipc"]
        return ["nsenter", "--target", str(self.pid), *own, "--", *command]

    def start(self, *command: str, env: Mapping[str, str], **options: Any) -> subprocess.Popen[str]:
        return subprocess.Popen(
            self.command(*command), env=dict(env), text=True, start_new_session=True, **options
        )

    def run(
        self, *command: str, env: Mapping[str, str] | None = None, limit_s: float = 60
    ) -> subprocess.CompletedProcess[str]:
        """Raises CalledProcessError; what it said is in the exception."""
        return subprocess.run(
            self.command(*command), env=env and dict(env), text=True, check=True,
            capture_output=True, timeout=limit_s,
        )  # fmt: skip

    @property
    def runs(self) -> bool:
        return self._outer.poll() is None

    def kill(self) -> None:
        """Its first process, and with it every other: the kernel closes their connections."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        self._outer.wait(_ENDS_S)

    # ---- faults of the network ----------------------------------------------------------------

    def unplug(self) -> None:
        """Every packet to and from it is lost, and nobody is told."""
        self._network.port(self.address, "nomaster")

    def plug(self) -> None:
        self._network.port(self.address, "master", _BRIDGE)

    def cut(self, ip: str, port: int | None = None) -> None:
        """What this machine sends there is lost from now on, of one TCP port or of all; who sends
        is not told, as a blackhole route would tell it."""
        self.run("ip", "rule", "add", *_selector(ip, port))

    def mend(self, ip: str, port: int | None = None) -> None:
        self.run("ip", "rule", "del", *_selector(ip, port))


def _selector(ip: str, port: int | None) -> list[str]:
    of_port = [] if port is None else ["ipproto", "tcp", "dport", str(port)]
    return ["to", ip, *of_port, "lookup", _LOST_TABLE]


class Network:
    """The switch, and this process's cable to it (`address.host` 1)."""

    def __init__(self) -> None:
        self.subnet = secrets.randbelow(50 * 250)
        self.here = Address(self.subnet, 1)
        self.interface = f"hr{secrets.token_hex(4)}"
        self._outer, self._pid = _namespaces(["--net", "--pid", "--mount-proc"], "switch", "")
        try:
            self._in("ip", "link", "add", _BRIDGE, "type", "bridge")
            self._in("ip", "link", "set", _BRIDGE, "up")
            self._cable(self.here, ["name", self.interface])
            _run(*_up(self.interface, self.here))
        except CannotMakeMachines:
            self.remove()
            raise

    def _in(self, *command: str) -> None:
        _run("nsenter", "--target", str(self._pid), "--net", "--", *command)

    def _cable(self, address: Address, far_end: Sequence[str]) -> None:
        # That of a machine which has just ended may still be there.
        with contextlib.suppress(CannotMakeMachines):
            self._in("ip", "link", "del", _port(address))
        far = ["peer", *far_end, "address", address.mac]
        if far_end == ["name", self.interface]:
            far += ["netns", str(os.getpid())]
        self._in("ip", "link", "add", _port(address), "type", "veth", *far)
        self._in("ip", "link", "set", _port(address), "master", _BRIDGE, "up")

    def connect(self, machine: Machine, others: Sequence[Machine]) -> None:
        """A cable for a new machine; who is there learns of it, and it of them."""
        self._cable(machine.address, ["name", "eth0", "netns", str(machine.pid)])
        machine.run("ip", "link", "set", "lo", "up")
        machine.run(*_up("eth0", machine.address))
        # Where packets go that are to be lost: to an address that is nobody's.
        nobody = machine.address.nobody
        machine.run(*_neighbour("eth0", nobody))
        machine.run("ip", "route", "add", "default", "via", nobody.ip, "table", _LOST_TABLE)
        for other in others:
            machine.run(*_neighbour("eth0", other.address))
            other.run(*_neighbour("eth0", machine.address))
        machine.run(*_neighbour("eth0", self.here))
        _run(*_neighbour(self.interface, machine.address))

    def port(self, address: Address, *words: str) -> None:
        self._in("ip", "link", "set", _port(address), *words)

    def remove(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._pid, signal.SIGKILL)
        self._outer.wait(_ENDS_S)
        # The kernel takes the cable away too, but later.
        subprocess.run(["ip", "link", "del", self.interface], capture_output=True, check=False)


def _port(address: Address) -> str:
    return f"port{address.host}"


def _up(interface: str, address: Address) -> list[str]:
    script = f"ip addr add {address.ip}/24 dev {interface} && ip link set {interface} up"
    return ["sh", "-c", script]


def _neighbour(interface: str, of: Address) -> list[str]:
    words = ["ip", "neigh", "replace", of.ip, "lladdr", of.mac]
    return [*words, "dev", interface, "nud", "permanent"]


@dataclass
class Lab:
    """A switch and machines on it; a context manager that ends them all."""

    machines: list[Machine] = field(default_factory=list)
    _next_host: int = _FIRST_HOST - 1

    def __enter__(self) -> Lab:
        if os.geteuid() != 0:
            raise CannotMakeMachines("only root may make namespaces; run it as root or in a "
                                     "user namespace (unshare --map-root-user --net)")  # fmt: skip
        self.network = Network()
        return self

    def machine(self, name: str, instead_of: Machine | None = None) -> Machine:
        """A new one, connected; with the address of one that has ended, where that is given."""
        address = instead_of.address if instead_of else self._next_address()
        made = Machine(name, address, self.network)
        others = [m for m in self.machines if m.runs]
        self.network.connect(made, others)
        self.machines.append(made)
        return made

    def _next_address(self) -> Address:
        self._next_host += 1
        return Address(self.network.subnet, self._next_host)

    def __exit__(self, *exc: object) -> None:
        for machine in self.machines:
            machine.kill()
        self.network.remove()


def _namespaces(words: Sequence[str], *arguments: str) -> tuple[subprocess.Popen[str], int]:
    """The process that made them, and the first one in them, which is ready."""
    command = ["unshare", *words, "--fork", "--kill-child=SIGKILL", "--propagation", "private"]
    if shutil.which("unshare") is None or shutil.which("nsenter") is None:
        raise CannotMakeMachines("unshare and nsenter are not installed (util-linux)")
    outer = subprocess.Popen(
        [*command, sys.executable, "-I", "-S", str(_INIT), *arguments],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        start_new_session=True, preexec_fn=_dies_with_its_parent,
    )  # fmt: skip
    assert outer.stdout is not None
    assert outer.stderr is not None
    if outer.stdout.readline().strip() != "ready":
        outer.kill()
        raise CannotMakeMachines(f"{' '.join(command)}: {outer.stderr.read().strip()}")
    return outer, only_child(outer.pid)


def only_child(pid: int) -> int:
    """Of a process that waits for what it started."""
    (child,) = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return int(child)
