"""What is published, what is revoked and what is frozen stand apart: none takes another back."""

from __future__ import annotations

import pytest
from ray.experimental import internal_kv

from deployments.process import tenants_store


class KeyValue:
    """Ray's, by its own names."""

    def __init__(self) -> None:
        self.data: dict[tuple[bytes, bytes], bytes] = {}

    def internal_kv_put(
        self, key: bytes, value: bytes, overwrite: bool, namespace: bytes, timeout: float
    ) -> None:
        assert overwrite
        self.data[namespace, key] = value

    def internal_kv_get(self, key: bytes, namespace: bytes, timeout: float) -> bytes | None:
        return self.data.get((namespace, key))

    def internal_kv_del(
        self, key: bytes, del_by_prefix: bool, namespace: bytes, timeout: float
    ) -> None:
        assert del_by_prefix
        gone = [(ns, name) for ns, name in self.data if ns == namespace and name.startswith(key)]
        for each in gone:
            del self.data[each]

    def internal_kv_keys(self, prefix: bytes, namespace: bytes, timeout: float) -> list[bytes]:
        return [key for ns, key in self.data if ns == namespace and key.startswith(prefix)]


@pytest.fixture(autouse=True)
def _store(monkeypatch: pytest.MonkeyPatch) -> None:
    store = KeyValue()
    monkeypatch.setattr(internal_kv, "internal_kv_get_gcs_client", lambda: store)


def test_revoked_hashes_add_up_whoever_writes_and_whatever_is_published() -> None:
    assert tenants_store.revoked() == frozenset()
    for key_hash in ("sha256:1", "sha256:2", "sha256:1"):
        tenants_store.revoke(key_hash)
    tenants_store.publish("tenants: {}\n")
    assert tenants_store.revoked() == {"sha256:1", "sha256:2"}
    assert tenants_store.fetch() == "tenants: {}\n"


def test_an_operators_switch_holds_until_tenants_are_published() -> None:
    tenants_store.publish_deployed("first", "d1")
    assert tenants_store.frozen() is None
    for turned in (True, False, True):
        tenants_store.freeze(turned)
        assert tenants_store.frozen() is turned
    tenants_store.publish_deployed("first", "d1")  # started again, no other deployment
    tenants_store.revoke("sha256:1")
    assert (tenants_store.frozen(), tenants_store.fetch()) == (True, "first")
    tenants_store.publish_deployed("second", "d2")
    assert (tenants_store.frozen(), tenants_store.fetch()) == (None, "second")
    assert tenants_store.revoked() == {"sha256:1"}


def test_a_deployment_is_published_once() -> None:
    assert tenants_store.fetch() is None
    tenants_store.publish_deployed("first", "d1")
    tenants_store.publish("an operator's")
    tenants_store.publish_deployed("first", "d1")
    assert tenants_store.fetch() == "an operator's"
    tenants_store.publish_deployed("second", "d2")
    assert tenants_store.fetch() == "second"
