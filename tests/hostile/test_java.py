"""Java's own client offers HTTP/2 with every request it sends in the clear, bodies included. Each
way in ignores the offer, reads the body whole, and keeps the connection."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

ASK = Path(__file__).with_name("Ask.java")
SIZES = (200, 20_000, 1 << 20)


@pytest.mark.slow
@pytest.mark.parametrize("way", ["edge", "gateway", "direct"])
def test_its_bodies_are_read_whole_on_one_connection(request: pytest.FixtureRequest, way: str):
    if shutil.which("java") is None:
        pytest.skip("JAVA'S CLIENT IS NOT CHECKED: no java")
    servers = request.getfixturevalue("roomy")
    target = getattr(servers, way)
    target.arrived.clear()
    servers.connections.clear()
    url = f"http://127.0.0.1:{target.port}/v2/models/device/infer"
    done = subprocess.run(
        ["java", str(ASK), url, *map(str, SIZES)],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    answers = [line.split(" ", 4) for line in done.stdout.splitlines()]
    assert len(answers) == 3 * len(SIZES) * 2
    for status, version, _, _, body in answers:
        assert (status, version) == ("200", "HTTP_1_1"), body
        assert json.loads(body)["outputs"]
    assert [path for path, _ in target.arrived] == ["/v2/models/device/infer"] * len(answers)
    assert len(servers.connections) == 1
    for _, headers in target.arrived:
        assert dict(headers).keys().isdisjoint({b"upgrade", b"http2-settings"})
