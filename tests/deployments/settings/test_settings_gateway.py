"""What the gateway's settings refuse together, and that the longest of them reach HAProxy."""

from __future__ import annotations

import re
from typing import Any

import pytest
from pydantic import ValidationError

from deployments.contract import haproxy_settings
from deployments.control.ingress.haproxy_options import HAProxyOptions
from deployments.settings.gateway import GatewaySettings

TLS = {"certificate": "/etc/headrace/tls.crt", "key": "/etc/headrace/tls.key"}
CA = {**TLS, "client_ca": "/etc/headrace/clients.crt"}
OWN = "which has this server's own paths; must begin otherwise"
NO_TLS = {"tls": False}


def refusal(given: dict[str, Any]) -> tuple[tuple[str | int, ...], str]:
    """Where, and why."""
    with pytest.raises(ValidationError) as refused:
        GatewaySettings.model_validate(given)
    (mistake,) = refused.value.errors()
    return tuple(mistake.get("ctx", {}).get("at", ())), mistake["msg"]


@pytest.mark.parametrize(
    ("given", "at", "message"),
    [
        ({"path_prefix": "/v2/x"}, ("path_prefix",), f"begins with /v2, {OWN}"),
        *(
            ({"path_prefix": f"/{name}/x"}, ("path_prefix",), f"begins with /{name}, {OWN}")
            for name in ("inference.GRPCInferenceService", "grpc.health.v1.Health",
                         "grpc.reflection.v1alpha.ServerReflection")
        ),
        ({"path_prefix": "/a" * 17}, ("path_prefix",), "has 17 parts; must have at most 16"),
        ({"trusted_proxies": [f"2001:db8:{n:x}::/48" for n in range(1001)]}, ("trusted_proxies",),
         "has 1001 networks; must have at most 1000: name larger networks"),
        ({"tls": CA, "grpc": NO_TLS}, ("grpc", "tls"),
         "is false, and gateway.tls.client_ca wants a certificate of every caller"),
        ({"grpc": {"port": 8000}}, ("grpc", "port"), "uses port 8000, which port uses too"),
    ],
)  # fmt: skip
def test_what_cannot_be_meant_is_refused(
    given: dict[str, Any], at: tuple[str, ...], message: str
) -> None:
    found, said = refusal(given)
    assert found == at
    assert re.match(re.escape(message), said)


@pytest.mark.parametrize(
    "given",
    [
        {"path_prefix": "/a" * 16},
        {"path_prefix": "/inference"},
        {"path_prefix": "/grpc"},
        {"tls": {**CA, "client_ca_for": "operators"}, "grpc": NO_TLS},
        {"tls": TLS, "grpc": NO_TLS},
        {"tls": CA, "grpc": {}},
        {"tls": CA},
    ],
)
def test_what_can_be_meant_is_taken(given: dict[str, Any]) -> None:
    GatewaySettings.model_validate(given)


def test_the_longest_lists_reach_haproxy() -> None:
    host = ".".join("a" * 60 for _ in range(4))
    origins = [f"https://{host}.{n:03}.example:65535" for n in range(200)]
    longest = [origin.replace("https://", f"https://{'b' * (270 - len(origin))}")
               for origin in origins]  # fmt: skip
    networks = [f"2001:db8:{n + 4096:x}:1111:1111:1111:1111:1111/128" for n in range(1000)]
    gateway = GatewaySettings.model_validate(
        {"cors": {"origins": longest}, "trusted_proxies": networks, "path_prefix": "/" + "a" * 127}
    )
    assert {len(each) for each in gateway.cors.origins} == {270}  # type: ignore[union-attr]
    _, body = haproxy_settings.page(gateway)
    head_bytes = 1024
    assert len(body) + head_bytes < haproxy_settings.MAX_BYTES
    options = HAProxyOptions.of(haproxy_settings.read(body))
    assert (len(options.cors_origins), len(options.trusted_proxies)) == (200, 1000)


@pytest.mark.parametrize("host", ["a.b:99999", "a.b:0443", "a.b:0", f"{'a' * 64}.b:443"])
def test_hosts_to_fetch_from_can_be_asked(host: str) -> None:
    found, said = refusal({"references": {"hosts": [host]}})
    assert found == ("hosts",)
    assert said.startswith(f"has {host}; must be a name of DNS")


def test_references_name_a_host() -> None:
    assert refusal({"references": {"hosts": []}})[1].startswith("is empty; must have a host")
