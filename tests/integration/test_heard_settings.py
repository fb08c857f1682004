"""Settings that running processes hear: HAProxy's bounds, and how all log. No replica of a model
restarts for them."""

from __future__ import annotations

import contextlib

import pytest
from served import Server, http, synthetic

from deployments.control.ingress.haproxy_options import HAProxyOptions
from deployments.control.supervisor import server_files

pytestmark = pytest.mark.integration
MODELS = {"a": synthetic(options={"base_ms": 2})}


@pytest.fixture(scope="module")
def server(serve) -> Server:
    made: Server = serve(MODELS, gateway={"ingress": "haproxy", "replicas": 2})
    return made.start()


def apply(server: Server, **gateway: object) -> None:
    file = server.write("new.yaml", MODELS, gateway=server.gateway | gateway)
    applied = server.headrace("apply", str(file))
    assert applied.returncode == 0, applied.stderr
    assert "restart" not in applied.stderr, "all is heard while the server runs"


def configuration(server: Server) -> str:
    """HAProxy's, as it runs now; "" while it is written anew."""
    (file,) = server_files.run_folder(server.port).glob("**/haproxy.cfg")
    with contextlib.suppress(FileNotFoundError):
        return file.read_text()
    return ""


def left(server: Server) -> int:
    """Lines of the model's replicas about gateways that left them: of level info."""
    return sum(" left: " in each and '"info"' in each for each in server.output.splitlines())


def test_bounds_of_haproxy_are_heard_while_models_run(server):
    pids = server.replicas("a")
    places = HAProxyOptions(max_requests=9).places
    assert f" maxconn {places} " not in configuration(server)
    with server.load("a") as load:
        apply(
            server,
            limits={"max_requests": 9, "body_timeout_s": 7, "max_body_bytes": 4096},
            trusted_proxies=["10.0.0.0/8"],
        )

        def heard() -> bool:
            now = configuration(server)
            return now.count(f" maxconn {places} ") == 2 and "wait-for-body time 7s" in now

        server.until(heard, 60)
        load.goes_on(server)
    assert "unless { src 10.0.0.0/8 }" in configuration(server)
    assert load.failures == []
    body = b"1" * 5000
    assert http.post(f"{server.url}/v2/models/a/infer", content=body).status_code == 413
    assert server.replicas("a") == pids


def test_a_log_level_is_heard_by_replicas_that_run(server):
    pids = server.replicas("a")
    quiet, loud = ({"log": {"level": each}} for each in ("error", "info"))
    apply(server, **quiet, limits={"max_requests": 10})
    apply(server, **quiet, limits={"max_requests": 11})  # once the replicas have heard
    server.until(lambda: " maxconn 86 " in configuration(server), 60)
    said = left(server)
    apply(server, **quiet, limits={"max_requests": 12})
    server.until(lambda: " maxconn 88 " in configuration(server), 60)
    assert left(server) == said
    apply(server, **loud, limits={"max_requests": 13})
    server.until(lambda: " maxconn 90 " in configuration(server), 60)
    apply(server, **loud, limits={"max_requests": 14})
    server.until(lambda: left(server) > said, 60)
    assert server.replicas("a") == pids
