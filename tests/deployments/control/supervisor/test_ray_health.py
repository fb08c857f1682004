"""Health checks of gRPC servers: any answer counts, silence and refusal do not."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest

from deployments.control.supervisor.ray_processes import answers


@pytest.fixture
def server() -> Iterator[int]:
    """The port of a gRPC server that knows no health check."""
    made = grpc.server(ThreadPoolExecutor(1))
    port = made.add_insecure_port("127.0.0.1:0")
    made.start()
    yield port
    made.stop(None).wait()


def test_an_error_is_an_answer(server):
    assert answers(f"127.0.0.1:{server}", 5.0)


def test_nobody_there_is_no_answer():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        assert not answers(f"127.0.0.1:{free.getsockname()[1]}", 5.0)


def test_one_that_accepts_and_says_nothing_is_no_answer():
    with socket.create_server(("127.0.0.1", 0)) as hung:
        assert not answers(f"127.0.0.1:{hung.getsockname()[1]}", 0.05)
