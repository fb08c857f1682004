"""`python -m loadtests.peers NAME --port PORT`: starts one of the other servers.

Creates the server's environment first if it does not exist (`out/peers/NAME`). `--list` names the
servers.
"""

from __future__ import annotations

import argparse
import os

from loadtests.peers import options as peer_options
from loadtests.peers.catalogue import PEERS, command_of, environ_of


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m loadtests.peers", description=__doc__)
    parser.add_argument("name", nargs="?", choices=PEERS)
    parser.add_argument("--port", type=int, default=8100)
    parser.add_argument("--work", choices=peer_options.WORKS, default=peer_options.DEVICE)
    parser.add_argument("--batch", type=int, help="most items in a batch (the tuned one)")
    parser.add_argument("--list", action="store_true", help="say which there are, and their tuning")
    asked = parser.parse_args(argv)
    if asked.list or asked.name is None:
        for peer in PEERS.values():
            print(f"{peer.name:20} {', '.join(peer.works)}: {peer.tuning}")
        return
    peer = PEERS[asked.name]
    if asked.work not in peer.works:
        parser.error(f"{peer.name} does not do {asked.work}")
    command = command_of(peer, asked.port, asked.work, asked.batch)
    os.execve(command[0], command, {**os.environ, **environ_of(peer)})


if __name__ == "__main__":
    main()
