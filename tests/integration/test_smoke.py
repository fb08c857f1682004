"""What a server promises under load is kept, and a promise that it breaks is said to be broken."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from served import Server

import loadtests

pytestmark = pytest.mark.integration
LOADTESTS = Path(loadtests.__file__).parent
SHARED = yaml.safe_load((LOADTESTS / "scenarios" / "device.yaml").read_text())["models"]


@pytest.fixture(scope="module")
def server(shared) -> Server:
    made: Server = shared
    return made


def test_the_small_promises_are_kept(server):
    server.until(lambda: server.infer("device", [1, 2]).status_code == 200, 60)
    promises = LOADTESTS / "promises" / "small.yaml"
    done = server.headrace("load", "smoke", str(promises), "--url", server.url)
    # On a machine that is busy otherwise the generator may say that its run does not count.
    said = [line.split()[0] for line in done.stdout.splitlines() if line.strip()]
    verdicts = [word for word in said if word in ("kept", "BROKEN")]
    assert verdicts == ["kept", "kept"], done.stdout + done.stderr


def test_a_broken_promise_is_an_error(server):
    scenario = LOADTESTS / "scenarios" / "ragged-mix.yaml"
    changes = ["arrivals.rate=20", "warmup_s=1", "duration_s=2"]
    promises = {"scenario": str(scenario), "changes": changes, "promises": [{"p95_ms": 0.001}]}
    file = server.folder / "impossible.yaml"
    file.write_text(yaml.safe_dump(promises))
    done = server.headrace("load", "smoke", str(file), "--url", server.url)
    assert done.returncode == 1, done.stdout + done.stderr
