"""Calls to the cluster's store are bounded, and say what did not answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from ray.exceptions import RpcError
from ray.experimental import internal_kv

from deployments.process import cluster_store
from deployments.process.cluster_store import StoreError


class HungStore:
    """Raises as Ray's client does when the limit passes; `limits`: what it was given."""

    def __init__(self) -> None:
        self.limits: list[float] = []

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def call(*_: Any, timeout: float) -> Any:
            self.limits.append(timeout)
            raise RpcError("Deadline Exceeded", rpc_code=4)

        return call


@pytest.mark.parametrize(
    "call",
    [
        lambda: cluster_store.put("a", b"1"),
        lambda: cluster_store.get("a"),
        lambda: cluster_store.delete("a"),
        lambda: cluster_store.names("a"),
    ],
    ids=["put", "get", "delete", "names"],
)
def test_a_store_that_hangs_is_an_error_that_says_so(call, monkeypatch):
    hung = HungStore()
    monkeypatch.setattr(internal_kv, "internal_kv_get_gcs_client", lambda: hung)
    with pytest.raises(StoreError, match=r"gcs_server\) does not answer within 5 s"):
        call()
    assert hung.limits == [cluster_store.ANSWER_S]


def test_without_a_cluster_there_is_no_store():
    with pytest.raises(StoreError, match="connected to no cluster"):
        cluster_store.get("a")
