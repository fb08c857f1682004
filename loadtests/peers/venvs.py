"""Creates the virtual environments of the other servers.

A peer has an environment of its own under `out/peers/NAME`, so that its dependencies do not
conflict with ours; `NAME/requirements.txt` beside this file lists its packages. `python -m
loadtests.peers.venvs triton` creates one; a stamp in it has the requirements that it was made from,
so that a second call does nothing. Ray Serve runs in our own environment, with our Ray.

Triton's Python backend links `libpython3.X.so`, and its wheel has stubs for 3.8 to 3.13. So the
interpreter must be a system one with a shared library (Debian: `python3-venv libpython3.11`).
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

PEERS_DIR = Path("out/peers")
STAMP = "headrace-peer.txt"


@dataclass(frozen=True, slots=True)
class PeerEnvironment:
    """How to create a peer's environment."""

    name: str
    interpreters: tuple[str, ...]  # the first that exists is used
    requirements: tuple[str, ...]  # for pip

    def stamp(self) -> str:
        return "\n".join((self.interpreters[0], *self.requirements)) + "\n"


def _peer(name: str, *interpreters: str) -> PeerEnvironment:
    text = (Path(__file__).parent / name / "requirements.txt").read_text()
    return PeerEnvironment(name, interpreters or (sys.executable,), tuple(text.split("\n")[:-1]))


PEERS = {
    peer.name: peer
    for peer in (
        _peer("triton", "/usr/bin/python3", "/usr/local/bin/python3"),
        _peer("litserve"),
        _peer("bentoml"),
        _peer("mlserver"),
        _peer("tabular"),
        _peer("infinity"),
    )
}


def python_of(name: str, peers_dir: Path = PEERS_DIR) -> Path:
    """The path of the peer's interpreter, which need not exist yet."""
    return (peers_dir / name / "bin" / "python").absolute()


def is_made(peer: PeerEnvironment, peers_dir: Path = PEERS_DIR) -> bool:
    stamp = peers_dir / peer.name / STAMP
    return (
        python_of(peer.name, peers_dir).exists()
        and stamp.is_file()
        and stamp.read_text() == peer.stamp()
    )


def interpreter_of(peer: PeerEnvironment) -> str:
    """The interpreter for the environment. Raises `FileNotFoundError`, which names all tried."""
    for candidate in peer.interpreters:
        found = shutil.which(candidate)
        if found is not None:
            return found
    raise FileNotFoundError(f"{peer.name} needs one of {', '.join(peer.interpreters)}")


def make(peer: PeerEnvironment, peers_dir: Path = PEERS_DIR) -> Path:
    """Creates the environment unless its stamp is current; returns its interpreter."""
    if is_made(peer, peers_dir):
        return python_of(peer.name, peers_dir)
    home = peers_dir / peer.name
    shutil.rmtree(home, ignore_errors=True)
    subprocess.run([interpreter_of(peer), "-m", "venv", str(home)], check=True)
    python = python_of(peer.name, peers_dir)
    # One after another, torch's line first, so that no other package chooses torch's build.
    for line in peer.requirements:
        subprocess.run([str(python), "-m", "pip", "install", "-qq", *line.split()], check=True)
    (home / STAMP).write_text(peer.stamp())
    return python


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m loadtests.peers.venvs", description=__doc__)
    parser.add_argument("peers", nargs="*", choices=[*PEERS, []], help="which (all)")
    names = parser.parse_args(argv).peers or list(PEERS)
    for name in names:
        print(f"{name}: {make(PEERS[name])}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
