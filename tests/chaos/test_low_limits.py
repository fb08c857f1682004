"""Few open files: a start that cannot succeed says so at once; with enough to start, no request is
lost."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from fault_cost import Blow, measured
from served import Server, running, synthetic

MODEL = synthetic(options={"base_ms": 20}) | {"replicas": {"count": 2}}


def limited(made: Server, files: int) -> Server:
    made.before = ["sh", "-c", f'ulimit -n {files} && exec "$@"', "sh"]
    return made


@pytest.mark.integration
def test_too_few_open_files_are_named_before_anything_is_started(tmp_path):
    server = limited(Server(tmp_path, {"steady": MODEL}), 256)
    try:
        server.start(ready=False)
        assert server.wait() == 1
    finally:
        left = server.end()
    assert "256 files open" in server.output
    assert "connections need 450" in server.output
    assert left == []


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("limits")
    made = limited(Server(folder, {"steady": MODEL}, gateway={"replicas": 2}), 512)
    with running(made):
        yield made


@pytest.mark.chaos
def test_with_few_open_files_callers_are_answered_at_the_peak(server):
    cost = measured(server, Blow("512 open files, peak load", lambda: None, "peak", 8.0))
    print(cost)
    assert (cost.lost, cost.refused) == (0, 0), cost
