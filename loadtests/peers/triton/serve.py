"""The fake device, served by Triton and tuned by its documentation.

Runs in the peer's own environment (`python -m loadtests.peers.venvs triton`). It takes the server
in the `nvidia-pytriton` wheel, gives it the Python backend's stub for this interpreter, writes a
model repository, and becomes the server. `--threads` is the number of HTTP threads, which Triton's
documentation advises to raise for many connections. Metrics and logs are off, and gRPC unless it
has a port.

Source: Triton user guide, "Dynamic Batcher" and "Optimization"; the wheel's own start-up.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import shutil
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent


def package_dir() -> Path:
    spec = importlib.util.find_spec("pytriton")  # found, not imported: its imports take seconds
    if spec is None or spec.origin is None:
        raise SystemExit("nvidia-pytriton is missing: run `python -m loadtests.peers.venvs triton`")
    return Path(spec.origin).parent


def install_stub(server_dir: Path) -> None:
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    stub = server_dir / "python_backend_stubs" / version / "triton_python_backend_stub"
    if not stub.exists():
        raise SystemExit(f"Triton's Python backend has no stub for Python {version}")
    shutil.copy(stub, server_dir / "backends" / "python" / stub.name)


def write_repository(root: Path) -> None:
    version_dir = root / "device" / "1"
    version_dir.mkdir(parents=True)
    shutil.copy(HERE / "config.pbtxt", root / "device" / "config.pbtxt")
    shutil.copy(HERE / "device_model.py", version_dir / "model.py")


def server_command(
    server_dir: Path, repository: Path, port: int, threads: int, grpc_port: int
) -> list[str]:
    return [
        str(server_dir / "bin" / "tritonserver"),
        f"--model-repository={repository}",
        f"--backend-directory={server_dir / 'backends'}",
        "--http-address=127.0.0.1",
        f"--http-port={port}",
        f"--http-thread-count={threads}",
        *(["--grpc-address=127.0.0.1", f"--grpc-port={grpc_port}"] if grpc_port else []),
        f"--allow-grpc={'true' if grpc_port else 'false'}",
        "--allow-metrics=false",
        "--log-info=false",
        "--exit-timeout-secs=5",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--grpc-port", type=int, default=0, help="of gRPC (0: none)")
    parser.add_argument("--threads", type=int, default=8)
    parser.add_argument("--batch-ms", type=float, default=2.0)
    parser.add_argument(
        "--repository", type=Path, help="a model repository (the fake device's, made)"
    )
    asked = parser.parse_args()
    server_dir = package_dir() / "tritonserver"
    install_stub(server_dir)
    repository = asked.repository or Path(tempfile.mkdtemp(prefix="triton-device-"))
    if not any(repository.glob("*/config.pbtxt")):
        write_repository(repository)
    libraries = str(package_dir().parent / "nvidia_pytriton.libs")
    environ = dict(os.environ, LD_LIBRARY_PATH=libraries, DEVICE_BATCH_MS=str(asked.batch_ms))
    environ["PATH"] = f"{Path(sys.executable).parent}:{environ.get('PATH', '')}"
    # By exec, so that the caller's child process id is the server's.
    command = server_command(server_dir, repository, asked.port, asked.threads, asked.grpc_port)
    os.execve(command[0], command, environ)


if __name__ == "__main__":
    main()
