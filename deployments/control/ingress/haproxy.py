"""Finds the program that Serve starts as HAProxy, and checks that it suits the installed Ray.

RAY_SERVE_HAPROXY_BINARY_PATH names one executable file, without arguments. Serve only checks that
it exists and may be run. An installed Headrace has such a program, `headrace-haproxy`. A checkout
that is not installed gets a shell script of two lines that runs the same module with this
interpreter.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

from deployments.control.ingress import haproxy_wrapper
from deployments.control.ingress.haproxy_options import HAProxyConfigError, HAProxyOptions

NAME = "headrace-haproxy"
_LAUNCHER = """#!/bin/sh
PYTHONPATH={folder}${{PYTHONPATH:+:$PYTHONPATH}} exec {python} -P -m {module} "$@"
"""
_CHECK_S = 20


def program(folder: Path, scripts: Path | None = None) -> Path:
    """The executable beside this interpreter (in `scripts`), else one that is made in `folder`.

    Raises FileNotFoundError if there is no HAProxy for it to run.
    """
    try:
        haproxy_wrapper.program(HAProxyOptions.of(os.environ), os.environ)
    except HAProxyConfigError as why:
        raise FileNotFoundError(
            f"{why}; one gateway on one machine needs none (gateway.ingress: direct)"
        ) from None
    installed = (scripts or Path(sysconfig.get_path("scripts"))) / NAME
    if os.access(installed, os.X_OK):
        return installed
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    path = folder / NAME
    module = haproxy_wrapper.__name__
    root = Path(haproxy_wrapper.__file__).absolute().parents[module.count(".")]
    path.write_text(
        _LAUNCHER.format(
            python=shlex.quote(sys.executable), folder=shlex.quote(str(root)), module=module
        )
    )
    path.chmod(0o700)
    return path


def problem(path: str, folder: Path) -> str | None:
    """Why the program at `path` cannot serve the configuration that the installed Ray writes; None
    if it can.

    Has Serve write its configuration into `folder`, and the program correct and check it.
    """
    if not os.path.isfile(path) or not os.access(path, os.X_OK):
        return f"{path} is no program"
    config = _written_by_serve(folder)
    try:
        done = subprocess.run(
            [path, "-c", "-f", str(config)],
            capture_output=True, text=True, timeout=_CHECK_S, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{path} cannot be run: {error}"
    if done.returncode:
        return (done.stderr.strip() or f"{path} ended with {done.returncode}")[-600:]
    if not haproxy_wrapper.is_corrected(config):
        return f"{path} serves Ray's template uncorrected; must be {NAME}"
    return None


def _written_by_serve(folder: Path) -> Path:
    """Serve's configuration of HAProxy with a gateway, the fallback, and every port it may bind."""
    from ray.serve._private.haproxy import BackendConfig, HAProxyApi, HAProxyConfig, ServerConfig
    from ray.serve.config import HTTPOptions

    path = folder / "haproxy.cfg"
    config = HAProxyConfig(
        http_options=HTTPOptions(host="127.0.0.1", port=8000),
        socket_path=str(folder / "admin.sock"),
        server_state_base=str(folder),
        server_state_file=str(folder / "server-state"),
    )
    servers: Any = [ServerConfig(name="SERVE_REPLICA_gateway", host="127.0.0.1", port=30000)]
    fallback: Any = ServerConfig(name="SERVE_PROXY_ACTOR-head", host="127.0.0.1", port=8500)
    backend = BackendConfig(
        name="http-gateway", path_prefix="/", servers=servers, fallback_server=fallback
    )
    HAProxyApi(config, {"http-gateway": backend}, str(path))._generate_config_file_internal()
    return path
