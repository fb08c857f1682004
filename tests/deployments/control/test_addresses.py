from __future__ import annotations

import pytest

from deployments.control.serve_config import in_cluster, serve_host
from deployments.settings.gateway import GatewaySettings


def gateway(**fields) -> GatewaySettings:
    return GatewaySettings.model_validate({"ingress": "haproxy"} | fields)


def test_many_nodes_are_reached_from_everywhere_unless_the_file_says_where():
    assert in_cluster(gateway()).host == "0.0.0.0"
    assert in_cluster(gateway(host="127.0.0.1")).host == "127.0.0.1"
    assert in_cluster(gateway(host="10.0.0.7")).host == "10.0.0.7"


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0", "::", "10.0.0.7"])
def test_on_one_machine_gateways_are_behind_haproxy_alone(host):
    assert serve_host(gateway(host=host), one_machine=True) == "127.0.0.1"


@pytest.mark.parametrize(
    ("host", "expected"), [("127.0.0.1", "0.0.0.0"), ("10.0.0.7", "0.0.0.0"), ("::", "::")]
)
def test_haproxies_of_other_nodes_reach_a_gateway(host, expected):
    assert serve_host(gateway(host=host), one_machine=False) == expected
