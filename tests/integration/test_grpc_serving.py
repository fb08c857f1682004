"""gRPC against a whole server, by unpatched clients: what its processes' deaths cost callers, and
that what the port says of the server is what the server does."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import grpc
import numpy as np
import psutil
import pytest
import tritonclient.grpc as triton
from grpc_health.v1 import health_pb2, health_pb2_grpc
from served import ANSWER_S, Server, free_port, synthetic

pytestmark = pytest.mark.integration

DEVICE = {
    **synthetic(options={"base_ms": 10}, batch={"max_size": 8}),
    "replicas": {"count": 2},
}
# For the death of HAProxy, which ends every connection (docs/grpc.md).
RETRIES = {
    "methodConfig": [
        {
            "name": [{"service": "inference.GRPCInferenceService"}],
            "retryPolicy": {
                "maxAttempts": 5, "initialBackoff": "0.5s", "maxBackoff": "4s",
                "backoffMultiplier": 2, "retryableStatusCodes": ["UNAVAILABLE"],
            },
        }
    ]
}  # fmt: skip


@pytest.fixture(scope="module")
def server(serve) -> Server:
    made: Server = serve({"device": DEVICE}, gateway={"replicas": 2, "grpc": {"port": free_port()}})
    return made.start()


@pytest.fixture(scope="module")
def target(server: Server) -> str:
    return f"127.0.0.1:{server.gateway['grpc']['port']}"


def tensor(values: list[int]) -> triton.InferInput:
    made = triton.InferInput("ids", [1, len(values)], "INT64")
    made.set_data_from_numpy(np.array([values], dtype=np.int64))
    return made


class GrpcLoad:
    """Clients that ask again and again, each on a thread and a connection of its own."""

    def __init__(self, target: str, clients: int, *, retries: bool) -> None:
        self._target, self._over = target, threading.Event()
        self._options = [("grpc.service_config", json.dumps(RETRIES))] if retries else []
        self.answered, self.failures = 0, []
        self._threads = [threading.Thread(target=self._ask, args=(n,)) for n in range(clients)]
        for thread in self._threads:
            thread.start()

    def _ask(self, client: int) -> None:
        options = [("grpc.use_local_subchannel_pool", 1), *self._options]
        with triton.InferenceServerClient(self._target, channel_args=options) as connection:
            while not self._over.wait(0.005):
                try:
                    result = connection.infer(
                        "device", [tensor([client, 1])], client_timeout=ANSWER_S
                    )
                except triton.InferenceServerException as error:
                    self.failures.append(str(error))
                    continue
                if result.as_numpy("sum").tolist() == [client + 1]:
                    self.answered += 1
                else:
                    self.failures.append("another's answer")

    def goes_on(self, server: Server, answers: int = 100) -> None:
        aim = self.answered + answers
        server.until(lambda: self.answered >= aim, 40)

    def stop(self) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()


@contextmanager
def load(target: str, *, retries: bool = False) -> Iterator[GrpcLoad]:
    made = GrpcLoad(target, 8, retries=retries)
    try:
        yield made
    finally:
        made.stop()


def test_the_server_is_healthy_and_serves_its_models(server: Server, target: str) -> None:
    with grpc.insecure_channel(target) as channel:
        health = health_pb2_grpc.HealthStub(channel)
        for name in ("", "device"):
            answer = health.Check(health_pb2.HealthCheckRequest(service=name), timeout=ANSWER_S)
            assert answer.status == health_pb2.HealthCheckResponse.SERVING
    with triton.InferenceServerClient(target) as client:
        assert client.is_server_ready()
        assert client.infer("device", [tensor([1, 2])]).as_numpy("sum").tolist() == [3.0]


def test_a_killed_gateway_loses_no_call(server: Server, target: str) -> None:
    with load(target) as calls:
        calls.goes_on(server)
        server.named("ray::ServeReplica:gateway")[0].kill()
        calls.goes_on(server, 400)
        server.until(lambda: len(server.named("ray::ServeReplica:gateway")) == 2, 40)
    assert calls.failures == []


def test_a_killed_replica_loses_no_call(server: Server, target: str) -> None:
    killed = min(server.replicas("device"))
    with load(target) as calls:
        calls.goes_on(server)
        psutil.Process(killed).kill()
        calls.goes_on(server, 400)
        server.until(lambda: len(server.replicas("device") - {killed}) == 2, 40)
    assert calls.failures == []


def test_a_killed_haproxy_costs_a_client_that_retries_nothing(server: Server, target: str) -> None:
    with load(target, retries=True) as calls:
        calls.goes_on(server)
        psutil.Process(max(each.pid for each in server.called("haproxy"))).kill()
        calls.goes_on(server, 400)
    assert calls.failures == []
