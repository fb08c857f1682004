"""The work, served by Triton with a Python backend and ragged batching.

Triton's dynamic batcher joins only requests of the same shape, unless an input has
`allow_ragged_batch`: then rows of any length share a batch, as on the other servers. One instance
owns the device. There is no queue delay, since
requests that come while the device is busy wait anyway. Against overload, requests that have waited
for 60 ms are refused, so that the device's time goes to those that can still be answered within
100 ms. This process becomes the server in the `nvidia-pytriton` wheel.
Source: Triton user guide, "Ragged Batching", "Dynamic Batcher", "Queue Policy".
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from pathlib import Path

from loadtests.peers import options as peer_options
from loadtests.peers.options import PeerOptions
from loadtests.peers.triton.serve import install_stub, package_dir, server_command

HERE = Path(__file__).resolve().parent
THREADS = 8
QUEUE_US = 60_000
IDS = 'name: "ids" data_type: TYPE_INT64 dims: [ -1 ]'
TEXT = 'name: "text" data_type: TYPE_STRING dims: [ 1 ]'
CONFIG = """
name: "{work}"
backend: "python"
max_batch_size: {batch}
input [ {{ {input} {ragged} }} ]
output [ {{ name: "answer" data_type: TYPE_FP32 dims: [ -1 ] }} ]
instance_group [ {{ kind: KIND_CPU count: 1 }} ]
dynamic_batching {{ max_queue_delay_microseconds: 0 {policy} }}
"""
POLICY = "default_queue_policy {{ timeout_action: REJECT default_timeout_microseconds: {} }}"


def config(asked: PeerOptions) -> str:
    on_device = asked.work == peer_options.DEVICE
    ragged = "allow_ragged_batch: true" if on_device else ""
    return CONFIG.format(
        work=asked.work,
        batch=asked.batch,
        input=IDS if on_device else TEXT,
        ragged=ragged,
        policy=POLICY.format(QUEUE_US) if on_device else "",
    )


def write_repository(root: Path, asked: PeerOptions) -> None:
    version_dir = root / asked.work / "1"
    version_dir.mkdir(parents=True)
    (root / asked.work / "config.pbtxt").write_text(config(asked))
    shutil.copy(HERE / "work_model.py", version_dir / "model.py")


def main() -> None:
    asked = peer_options.parse(__doc__)
    server_dir = package_dir() / "tritonserver"
    install_stub(server_dir)
    repository = Path(tempfile.mkdtemp(prefix="triton-peer-"))
    write_repository(repository, asked)
    libraries = str(package_dir().parent / "nvidia_pytriton.libs")
    environ = dict(os.environ, LD_LIBRARY_PATH=libraries, PEER_WORK=asked.work)
    environ["PATH"] = f"{Path(sys.executable).parent}:{environ.get('PATH', '')}"
    # By exec, so that the caller's child process id is the server's.
    command = server_command(server_dir, repository, asked.port, THREADS, grpc_port=0)
    os.execve(command[0], command, environ)


if __name__ == "__main__":
    main()
