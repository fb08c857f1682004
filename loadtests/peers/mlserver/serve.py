"""Starts MLServer: writes its settings; then this process becomes `mlserver start`.

One parallel worker owns the device, as its documentation advises for models that compute. The
batcher does not know whether the device is free, so a batch has the rows that arrive within
`max_batch_time`: 20 ms, about the device's time for a batch. A bounded queue before the batcher is
its only means against overload. gRPC cannot be switched off, so it gets a port.
Source: MLServer documentation, "Adaptive Batching", "Parallel Inference".
"""

from __future__ import annotations

import json
import os
import socket
import sys
import tempfile
from pathlib import Path

from loadtests.peers import options as peer_options
from loadtests.peers.options import PeerOptions

BATCH_TIME_S = 0.02


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def server_settings(port: int, home: Path) -> dict[str, object]:
    return {
        "host": "127.0.0.1",
        "http_port": port,
        "grpc_port": free_port(),
        "metrics_endpoint": None,
        "metrics_dir": str(home),
        "parallel_workers": 1,
        "debug": False,
        "gzip_enabled": False,
    }


def model_settings(asked: PeerOptions) -> dict[str, object]:
    return {
        "name": "model",
        "implementation": "loadtests.peers.mlserver.runtime.Model",
        "max_batch_size": asked.batch,
        "max_batch_time": BATCH_TIME_S,
        "parameters": {"extra": {"work": asked.work}},
    }


def main() -> None:
    asked = peer_options.parse(__doc__)
    home = Path(tempfile.mkdtemp(prefix="mlserver-peer-"))
    (home / "settings.json").write_text(json.dumps(server_settings(asked.port, home)))
    (home / "model-settings.json").write_text(json.dumps(model_settings(asked)))
    command = [str(Path(sys.executable).with_name("mlserver")), "start", str(home)]
    # By exec, so that the caller's child process id is the server's.
    os.execve(command[0], command, dict(os.environ))


if __name__ == "__main__":
    main()
