"""A request that ends every gateway that parses it costs two gateways, however often it is sent, or
three; a gateway that somebody kills costs nobody an answer."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import httpx
import pytest
from served import ANSWER_S, Server, get, infer_body, synthetic

pytestmark = pytest.mark.integration

DEVICE = synthetic(options={"base_ms": 20}, batch={"max_size": 4})
SENT = 6
# Imported by every process of the server; makes gateways die of a word in a body.
FAULT = """
import importlib.abc, importlib.machinery, os, signal, sys

class Fatal(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name != "deployments.gateway.http.codecs":
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        execute = spec.loader.exec_module

        def exec_module(module):
            execute(module)
            decode = module.InferCodec.decode

            def fatal(self, body, *args):
                if b"poison" in body:
                    os.kill(os.getpid(), signal.SIGKILL)
                return decode(self, body, *args)

            module.InferCodec.decode = fatal

        spec.loader.exec_module = exec_module
        return spec

sys.meta_path.insert(0, Fatal())
"""


@pytest.fixture(scope="module")
def server(serve, tmp_path_factory: pytest.TempPathFactory) -> Server:
    folder: Path = tmp_path_factory.mktemp("fault")
    (folder / "sitecustomize.py").write_text(FAULT)
    made: Server = serve({"device": DEVICE}, gateway={"replicas": 2})
    made.environ["PYTHONPATH"] = f"{folder}{os.pathsep}{made.environ['PYTHONPATH']}"
    return made.start()


def gateways(server: Server) -> set[int]:
    return {p.pid for p in server.named("ray::ServeReplica:gateway")}


def status(server: Server, body: dict[str, object]) -> int:
    """0: the connection ended without an answer."""
    url = f"{server.url}/v2/models/device/infer"
    try:
        return httpx.post(url, json=body, timeout=ANSWER_S).status_code
    except httpx.RemoteProtocolError:
        return 0


def until_two(server: Server) -> None:
    server.until(lambda: len(server.gateway_urls()) == 2, 60)
    server.until(lambda: get(f"{server.url}/readyz") == 200, 30)


def test_a_gateway_that_is_killed_under_load_costs_nobody_an_answer(server: Server) -> None:
    with server.load("device", clients=24) as load:
        server.until(lambda: load.answered > 200, 40)
        os.kill(min(gateways(server)), signal.SIGKILL)
        before = load.answered
        server.until(lambda: load.answered > before + 200, 40)
    assert load.failures == []
    until_two(server)


def test_a_request_that_ends_gateways_costs_three_at_most_however_often_sent(
    server: Server,
) -> None:
    seen = gateways(server)
    assert len(seen) == 2
    poison = {**infer_body([1]), "id": "poison"}
    answers: list[int] = []
    while 422 not in answers and len(answers) < SENT:
        answers.append(status(server, poison))
        until_two(server)
        seen |= gateways(server)
    assert answers[-1] == 422, answers
    assert [status(server, poison) for _ in range(SENT)] == [422] * SENT
    assert status(server, infer_body([1])) == 200
    # Three, and those in their places, where HAProxy sends it on before the kernel tells the second
    # gateway of the first one's end.
    assert len(seen | gateways(server)) in (4, 5), answers
