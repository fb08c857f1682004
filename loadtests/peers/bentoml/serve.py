"""Starts BentoML: this process becomes `bentoml serve` for the service beside this file."""

from __future__ import annotations

import os
import sys

from loadtests.peers import options as peer_options

SERVICE = "loadtests.peers.bentoml.service:Model"


def main() -> None:
    asked = peer_options.parse(__doc__)
    settings = {"PEER_WORK": asked.work, "PEER_BATCH": str(asked.batch)}
    settings["BENTOML_DO_NOT_TRACK"] = "true"
    settings["BENTOML_CONFIG_OPTIONS"] = "api_server.logging.access.enabled=false"
    command = [sys.executable, "-m", "bentoml", "serve", SERVICE]
    command += ["--host", "127.0.0.1", "--port", str(asked.port)]
    # By exec, so that the caller's child process id is the server's.
    os.execve(command[0], command, {**os.environ, **settings})


if __name__ == "__main__":
    main()
