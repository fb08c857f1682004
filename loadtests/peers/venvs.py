"""The interpreter, packages and environment that each other server needs.

Every peer has a virtual environment of its own under `out/peers/NAME`, so that its dependencies
never meet ours; what goes into it stands in `NAME/requirements.txt` beside this file. `python -m
loadtests.peers.venvs triton` makes one; a second call finds it made (a stamp holds the requirements
it was made from). Ray Serve runs from our own environment, with our Ray, and so has none here.

Triton's Python backend links `libpython3.X.so` and the wheel brings stubs for 3.8 to 3.13: the
interpreter must be a system one with its shared library (Debian: `python3-venv libpython3.11`).
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
    """`interpreters`: the first that exists makes the environment. `requirements`: for pip."""

    name: str
    interpreters: tuple[str, ...]
    requirements: tuple[str, ...]

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
        _peer("infinity"),
    )
}


def python_of(name: str, peers_dir: Path = PEERS_DIR) -> Path:
    """The peer's interpreter, whether or not it is there yet."""
    return (peers_dir / name / "bin" / "python").absolute()


def is_made(peer: PeerEnvironment, peers_dir: Path = PEERS_DIR) -> bool:
    stamp = peers_dir / peer.name / STAMP
    return (
        python_of(peer.name, peers_dir).exists()
        and stamp.is_file()
        and stamp.read_text() == peer.stamp()
    )


def interpreter_of(peer: PeerEnvironment) -> str:
    """Raises `FileNotFoundError` naming what was looked for."""
    for candidate in peer.interpreters:
        found = shutil.which(candidate)
        if found is not None:
            return found
    raise FileNotFoundError(f"{peer.name} needs one of {', '.join(peer.interpreters)}")


def make(peer: PeerEnvironment, peers_dir: Path = PEERS_DIR) -> Path:
    """Makes the environment afresh unless it is made; returns its interpreter."""
    if is_made(peer, peers_dir):
        return python_of(peer.name, peers_dir)
    home = peers_dir / peer.name
    shutil.rmtree(home, ignore_errors=True)
    subprocess.run([interpreter_of(peer), "-m", "venv", str(home)], check=True)
    python = python_of(peer.name, peers_dir)
    # One after the other: torch's line comes first, so that nothing else chooses its build.
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
