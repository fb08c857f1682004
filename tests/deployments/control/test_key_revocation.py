"""A key's end on a running server: at once, for good, beside whatever else is going on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from deployments.control.key_revocation import KeyRevocation
from deployments.settings.gateway import GatewaySettings

HASHES = {name: "sha256:" + digit * 64 for name, digit in (("a", "1"), ("b", "2"), ("root", "3"))}
TENANTS = {
    "tenants": {
        "acme": {
            "keys": [
                {"id": "a", "hash": HASHES["a"], "expires": "2027-01-01T00:00:00Z"},
                {"id": "b", "hash": HASHES["b"], "models": ["m"]},
            ]
        }
    },
    "operators": {"keys": [{"id": "root", "hash": HASHES["root"]}]},
}


class Store:
    """The cluster's key-value store."""

    def __init__(self, text: str | None = None) -> None:
        self.text = text
        self.hashes: set[str] = set()

    def fetch(self) -> str | None:
        return self.text

    def revoke(self, key_hash: str) -> None:
        self.hashes.add(key_hash)

    def revoked(self) -> frozenset[str]:
        return frozenset(self.hashes)


def made(store: Store, folder: Path, **gateway: object) -> KeyRevocation:
    settings = GatewaySettings.model_validate(gateway)
    return KeyRevocation(store, folder / "state" / "revoked", settings, wall=lambda: 1.0e10)


@pytest.fixture
def store() -> Store:
    return Store(yaml.safe_dump(TENANTS))


@pytest.mark.parametrize("name", ["b", HASHES["b"]])
def test_a_key_is_revoked_by_its_id_or_hash(tmp_path: Path, store: Store, name: str) -> None:
    keys = made(store, tmp_path)
    assert keys.revoke({"key": name}) == {
        "revoked": "b", "owner": "tenant acme", "hash": HASHES["b"],
    }  # fmt: skip
    assert store.hashes == {HASHES["b"]}


def test_an_unknown_id_is_met_with_those_there_are(tmp_path: Path, store: Store) -> None:
    answer = made(store, tmp_path).revoke({"key": "c"})
    assert answer == {"error": "no key is called 'c'; there are: a, b, root"}
    assert not store.hashes


def test_what_was_revoked_stays_so_at_the_next_start(tmp_path: Path, store: Store) -> None:
    for _ in range(2):
        made(store, tmp_path).revoke({"key": "b"})
    anew = Store(store.text)
    made(anew, tmp_path).recall()
    assert anew.hashes == {HASHES["b"]}
    assert (tmp_path / "state" / "revoked").read_text() == HASHES["b"] + "\n"


def test_a_hash_that_a_full_disk_cut_off_spoils_no_other(tmp_path: Path, store: Store) -> None:
    keys = made(store, tmp_path)
    keys.revoke({"key": "a"})
    file = tmp_path / "state" / "revoked"
    file.write_bytes(file.read_bytes()[:20])
    keys.revoke({"key": "b"})
    later = Store(store.text)
    made(later, tmp_path).recall()
    assert HASHES["b"] in later.hashes


def test_what_was_revoked_at_a_gateway_stays_so_at_the_next_start(
    tmp_path: Path, store: Store
) -> None:
    keys = made(store, tmp_path)
    store.revoke(HASHES["a"])
    keys.keep()
    store.revoke(HASHES["b"])
    keys.keep()  # within the same second
    assert (tmp_path / "state" / "revoked").read_text() == HASHES["a"] + "\n"


def test_a_store_that_is_away_ends_nothing(
    tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away() -> frozenset[str]:
        raise ConnectionError

    monkeypatch.setattr(store, "revoked", away)
    made(store, tmp_path).keep()


def test_all_keys_are_listed_with_their_states_and_hashes_of_revoked_ones(
    tmp_path: Path, store: Store
) -> None:
    keys = made(store, tmp_path)
    keys.revoke({"key": "root"})
    listing = keys.listing()
    rows = [(row["id"], row["owner"], row["state"]) for row in listing["keys"]]
    assert rows == [
        ("a", "tenant acme", "expired"), ("b", "tenant acme", "good"),
        ("root", "operators", "revoked"),
    ]  # fmt: skip
    assert json.dumps(listing).count("sha256") == 1
    assert listing["keys"][2]["hash"] == HASHES["root"]


def test_keys_of_a_tenants_file_are_revoked_too(tmp_path: Path) -> None:
    path = tmp_path / "tenants.yaml"
    path.write_text(yaml.safe_dump(TENANTS))
    store = Store()
    keys = made(store, tmp_path, tenants_path=str(path))
    assert keys.revoke({"key": "a"})["revoked"] == "a"
    assert store.hashes == {HASHES["a"]}
