"""Dropping a batch and hearing of its start, and a lasting stream, over Serve's handles as we use
them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from served import environment, patient

from deployments.cluster import ray_env
from deployments.settings.gateway import GatewaySettings

pytestmark = pytest.mark.integration


@pytest.mark.parametrize("script", ["transport_script.py", "stream_script.py"])
def test_what_a_gateway_asks_of_a_replica_is_done_over_serves_handles(tmp_path, script):
    env = ray_env.serve_environment(GatewaySettings(ingress="proxy"), tmp_path)
    own = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "RAY_prestart_worker_first_driver": "0"}
    ran = subprocess.run(
        [sys.executable, str(Path(__file__).with_name(script))],
        env=environment() | env | own, timeout=patient(240),
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    said = [line for line in ran.stdout.splitlines() if line.startswith("SEEN ")]
    assert said, ran.stdout + ran.stderr
    found = json.loads(said[0].removeprefix("SEEN "))
    assert [what for what, held in found.items() if not held] == []
