"""A key's life: several at once, from when until when, what for, and one answer to all others."""

from __future__ import annotations

import os
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from deployments.contract.errors import Forbidden, OverOwnLimit, Unauthorized
from deployments.gateway.tenancy.live_tenants import (
    LiveTenants,
    PublishedTenants,
    RevokedFolder,
    RevokedKeys,
)
from deployments.gateway.tenancy.rates import Rates
from deployments.gateway.tenancy.tenants import KeyTable, Tenant, Tenants, hash_key
from deployments.settings.key import OperatorKeySettings, moment_s
from deployments.settings.plain import SettingsErrors
from deployments.settings.tree import TenantsSettings

BEGINS, ENDS = "2027-01-01T00:00:00Z", "2027-02-01T00:00:00Z"


def made(
    *keys: dict[str, Any], wall_s: float = 0.0, revoked: tuple[str, ...] = (), **of: Any
) -> Tenants:
    """Tenant `a` with these keys, each of which is `hr_` and its id, and one operator's."""
    listed = [{"hash": hash_key(f"hr_{key['id']}"), **key} for key in keys]
    declared = TenantsSettings.model_validate({"tenants": {"a": {"keys": listed, **of}}}).tenants
    operator = OperatorKeySettings(hash=hash_key("hr_operator"), id="root")
    table = KeyTable([operator], [hash_key(f"hr_{each}") for each in revoked], lambda: wall_s)
    return Tenants(declared, auth="required", table=table)


def by(tenants: Tenants, key: str) -> Tenant:
    return tenants.identify(f"Bearer hr_{key}".encode(), None, None).tenant


def refusal(tenants: Tenants, key: str) -> str:
    with pytest.raises(Unauthorized) as refused:
        by(tenants, key)
    return refused.value.message


def test_several_keys_are_good_at_once_and_tell_their_ids() -> None:
    tenants = made({"id": "old"}, {"id": "new"})
    assert [by(tenants, key).key for key in ("old", "new")] == ["old", "new"]
    assert {by(tenants, key).name for key in ("old", "new")} == {"a"}


@pytest.mark.parametrize(
    ("wall_s", "good"),
    [
        (moment_s(BEGINS) - 0.001, False),
        (moment_s(BEGINS), True),
        (moment_s(ENDS) - 0.001, True),
        (moment_s(ENDS), False),
    ],
)
def test_a_key_is_good_from_its_begin_until_before_its_end(wall_s: float, good: bool) -> None:
    tenants = made({"id": "k", "not_before": BEGINS, "expires": ENDS}, wall_s=wall_s)
    if good:
        assert by(tenants, "k").key == "k"
        return
    with pytest.raises(Unauthorized) as refused:
        by(tenants, "k")
    assert refused.value.expired_key == ("k" if wall_s >= moment_s(ENDS) else "")


def test_an_unknown_key_is_no_expired_one() -> None:
    tenants = made({"id": "k", "expires": ENDS}, wall_s=moment_s(ENDS))
    with pytest.raises(Unauthorized) as refused:
        by(tenants, "unknown")
    assert refused.value.expired_key == ""


def test_unknown_expired_early_and_revoked_keys_are_answered_alike() -> None:
    tenants = made(
        {"id": "expired", "expires": BEGINS}, {"id": "early", "not_before": ENDS},
        {"id": "revoked"}, wall_s=moment_s("2027-01-10T00:00:00Z"), revoked=("revoked",),
    )  # fmt: skip
    said = {refusal(tenants, key) for key in ("unknown", "expired", "early", "revoked")}
    assert len(said) == 1


def test_a_revoked_last_key_leaves_the_door_shut() -> None:
    tenants = made({"id": "k"}, revoked=("k",))
    assert tenants.need_keys
    with pytest.raises(Unauthorized):
        tenants.identify(None, b"a", None)


def test_what_goes_on_is_held_to_its_keys_end() -> None:
    ending = {"id": "k", "expires": ENDS}
    tenant = by(made(ending), "k")
    assert made(ending, wall_s=moment_s(ENDS) - 1).still_opens(tenant)
    assert not made(ending, wall_s=moment_s(ENDS)).still_opens(tenant)
    assert not made(ending, revoked=("k",)).still_opens(tenant)
    assert not made({"id": "other"}).still_opens(tenant)
    another = {**ending, "hash": hash_key(b"another")}
    assert not made(another).still_opens(tenant)  # the id was given to a new key
    assert made({"id": "other"}).still_opens(Tenant("a"))  # that came without a key


def test_an_operators_key_runs_no_model_and_may_be_revoked() -> None:
    with pytest.raises(Forbidden, match="runs no model"):
        by(made({"id": "k"}), "operator")
    refusal(made({"id": "k"}, revoked=("operator",)), "operator")


@pytest.mark.parametrize(
    ("tenants", "keys", "may"),
    [
        (None, None, {"m", "m:x", "n"}),
        (["m"], None, {"m"}),
        (None, ["m:x"], {"m:x"}),
        (None, ["m:*"], {"m:x"}),
        (["m", "n"], ["m", "m:x"], {"m"}),
        (["m", "m:*"], ["m:x"], {"m:x"}),
        (["m:x"], ["m:*", "n"], {"m:x"}),
        (["m"], [], set()),
    ],
)
def test_a_key_opens_what_it_and_its_tenant_both_may(
    tenants: list[str] | None, keys: list[str] | None, may: set[str]
) -> None:
    key = {"id": "k"} | ({} if keys is None else {"models": keys})
    found = by(made(key, **({} if tenants is None else {"models": tenants})), "k")
    asked = ("m", "m:x", "n")
    assert {name for name in asked if found.may_use(*name.split(":"))} == may


def test_an_adapters_model_is_seen_and_not_run() -> None:
    tenants = made({"id": "k", "models": ["m:x"]})
    assert not by(tenants, "k").may_use("m")
    reader = tenants.reader(b"Bearer hr_k")
    assert (reader.key, reader.may_see("m"), reader.may_see("n")) == ("k", True, False)


@pytest.mark.parametrize(
    ("own", "keys", "least"), [(5, 3, 3), (3, 5, 3), (None, 4, 4), (4, None, 4)]
)
def test_the_shorter_of_two_longest_lengths_holds(
    own: int | None, keys: int | None, least: int
) -> None:
    assert by(made({"id": "k", "max_length": keys}, max_length=own), "k").max_length == least


def test_a_key_has_a_rate_of_its_own_within_its_tenants() -> None:
    tenants = made(
        {"id": "slow", "rate": {"requests_per_s": 1}}, {"id": "free"}, rate={"requests_per_s": 3}
    )
    rates = Rates(1, clock=lambda: 0.0)
    rates.take_request(by(tenants, "slow"))
    with pytest.raises(OverOwnLimit, match="this key has used its rate of 1"):
        rates.take_request(by(tenants, "slow"))
    for _ in range(2):  # what the key was refused is not its tenant's
        rates.take_request(by(tenants, "free"))
    with pytest.raises(OverOwnLimit, match="this tenant has used its rate of 3"):
        rates.take_request(by(tenants, "free"))


def test_tokens_are_counted_at_the_keys_rate_too() -> None:
    tenant = by(made({"id": "k", "rate": {"tokens_per_s": 10}}), "k")
    rates = Rates(1, clock=lambda: 0.0)
    rates.spend(tenant, 15)
    with pytest.raises(OverOwnLimit, match="this key has used its rate of 10 tokens"):
        rates.take_tokens(tenant, 1)
    assert set(rates.report()) == {"key/k"}


# ---- of a running gateway ---------------------------------------------------------------------


class Store:
    """The cluster's: tenants and what is revoked, either of which may be away."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.revoked: frozenset[str] = frozenset()
        self.away = False

    def fetch(self) -> str:
        return self._there(self.text)

    def fetch_revoked(self) -> frozenset[str]:
        return self._there(self.revoked)

    def revoke(self, key_hash: str) -> None:
        self.revoked |= {key_hash}

    def _there(self, found: Any) -> Any:
        if self.away:
            raise ConnectionError("gone")
        return found


def text_of(*ids: str) -> str:
    keys = [{"id": each, "hash": hash_key(f"hr_{each}")} for each in ids]
    return yaml.safe_dump({"tenants": {"a": {"keys": keys}}})


def lively(store: Store, clock: list[float]) -> LiveTenants:
    source = PublishedTenants(store.fetch)
    revoked = RevokedKeys(store.fetch_revoked, store.revoke)
    return LiveTenants(source, revoked=revoked, clock=lambda: clock[0])


def test_a_revoked_key_is_refused_at_the_next_look_whatever_the_tenants_say() -> None:
    store, clock = Store(text_of("old", "new")), [0.0]
    live = lively(store, clock)
    store.revoked = frozenset({hash_key("hr_old")})
    assert live.refresh()
    refusal(live.current, "old")
    assert by(live.current, "new").key == "new"
    store.text = text_of("old", "new", "more")  # an older file is applied again
    assert live.refresh()
    refusal(live.current, "old")
    assert not live.refresh()


class TwoClusters:
    """Each with a store of its own, and gateways on nodes that mount the same folder: the ConfigMap
    of a release. `cluster(n)` starts a gateway there."""

    def __init__(self, folder: Path) -> None:
        self.stores = [Store(text_of("old", "new")), Store(text_of("old", "new"))]
        self.folder = folder

    def cluster(self, number: int) -> LiveTenants:
        store = self.stores[number]
        revoked = RevokedKeys(store.fetch_revoked, store.revoke, RevokedFolder(self.folder))
        return LiveTenants(PublishedTenants(store.fetch), revoked=revoked)

    def names(self, key: str) -> None:
        """As the kubelet mounts a ConfigMap: a link to a file of a folder beside."""
        (self.folder / "..data").mkdir(exist_ok=True)
        name = hash_key(f"hr_{key}").removeprefix("sha256:")
        (self.folder / "..data" / name).write_text(f"{key} tenant a")
        (self.folder / name).symlink_to(self.folder / "..data" / name)


def test_what_one_cluster_revokes_alone_opens_in_another(tmp_path: Path) -> None:
    """KubeRay gives each cluster a control store of its own: hence the folder."""
    clusters = TwoClusters(tmp_path)
    serving, pending = clusters.cluster(0), clusters.cluster(1)
    serving.revoke("old")
    assert not pending.refresh()
    assert by(pending.current, "old").key == "old"


def test_a_key_in_the_folder_ends_in_all_clusters_and_those_to_come(tmp_path: Path) -> None:
    clusters = TwoClusters(tmp_path)
    serving = clusters.cluster(0)
    pending = clusters.cluster(1)
    serving.revoke("old")
    clusters.names("old")
    assert pending.refresh()
    clusters.stores.append(Store(text_of("old", "new")))  # a rollback starts a third
    for each in (serving, pending, clusters.cluster(2)):
        each.refresh()
        refusal(each.current, "old")
        assert by(each.current, "new").key == "new"


def test_the_folder_is_heard_while_the_store_is_away_and_the_other_way_round(
    tmp_path: Path,
) -> None:
    clusters = TwoClusters(tmp_path / "mounted")
    clusters.folder.mkdir()
    live, (store, _) = clusters.cluster(0), clusters.stores
    store.away = True
    clusters.names("old")
    assert live.refresh()
    refusal(live.current, "old")
    assert by(live.current, "new").key == "new"
    store.away = False
    clusters.folder.rename(tmp_path / "gone")
    store.revoke(hash_key("hr_new"))
    assert live.refresh()
    for key in ("old", "new"):
        refusal(live.current, key)  # what was revoked stays so
    assert f"cannot be had: {clusters.folder}: No such file" in (live.problem or "")
    with pytest.raises(SettingsErrors, match=f"{clusters.folder}: No such file"):
        clusters.cluster(0)
    (tmp_path / "gone").rename(clusters.folder)
    live.refresh()
    assert live.problem is None


def test_a_folder_that_cannot_be_read_is_told_of_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clusters = TwoClusters(tmp_path / "mounted")
    clusters.folder.mkdir()
    live = clusters.cluster(0)
    clusters.folder.rmdir()
    for _ in range(3):
        live.refresh()
    (line,) = [each.getMessage() for each in caplog.records]
    assert f"{clusters.folder}: No such file or directory; those that were stay revoked" in line


def test_a_folder_that_is_gone_takes_back_no_revocation(tmp_path: Path) -> None:
    """Not of a gateway that heard it, and not of one that starts in the same cluster."""
    clusters = TwoClusters(tmp_path)
    clusters.names("old")
    clusters.names("nobodys")
    live = clusters.cluster(0)
    live.refresh()
    assert clusters.stores[0].revoked == {hash_key("hr_old")}, "what no list has needs no place"
    for each in tmp_path.iterdir():
        each.unlink() if each.is_symlink() else None
    live.refresh()
    for gateway in (live, clusters.cluster(0)):
        refusal(gateway.current, "old")
        assert {r["id"]: r["state"] for r in gateway.key_rows()}["old"] == "revoked"


def test_a_folder_that_hangs_keeps_nothing_from_being_revoked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clusters, clock, hangs = TwoClusters(tmp_path), [0.0], threading.Event()
    store = clusters.stores[0]
    folder = RevokedFolder(tmp_path, clock=lambda: clock[0])
    revoked = RevokedKeys(store.fetch_revoked, store.revoke, folder)
    live = LiveTenants(PublishedTenants(store.fetch), revoked=revoked, clock=lambda: clock[0])
    monkeypatch.setattr(folder, "_list", lambda: hangs.wait(20.0) and frozenset())
    clusters.names("new")
    assert live.revoke("old")["hash"] == hash_key("hr_old")
    refusal(live.current, "old")
    assert live.problem is None
    clock[0] = 6.0
    live.refresh()
    assert f"{tmp_path} does not answer" in (live.problem or "")
    assert live.age_s == 6.0
    hangs.set()


def test_the_folder_is_in_force_before_the_store_is_asked(tmp_path: Path) -> None:
    """A control store that hangs takes five seconds a call."""
    clusters = TwoClusters(tmp_path)
    live = clusters.cluster(0)
    states: list[str] = []

    def hangs() -> frozenset[str]:
        states.extend(row["state"] for row in live.key_rows() if row["id"] == "old")
        refusal(live.current, "old")
        raise TimeoutError

    live._revocations = replace(live._revocations, fetch=hangs)
    clusters.names("old")
    assert live.refresh()
    assert states == ["revoked"]


def test_a_folder_that_did_not_change_is_not_listed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clusters, clock, listed = TwoClusters(tmp_path), [0.0], [0]
    folder = RevokedFolder(tmp_path, clock=lambda: clock[0])
    listdir = os.listdir

    def counted(path: Path) -> list[str]:
        listed[0] += 1
        return listdir(path)

    monkeypatch.setattr(os, "listdir", counted)
    for clock[0] in (0.0, 2.9, 3.0, 10.0, 30.0):
        assert folder.hashes() == frozenset()
    assert listed[0] == 2  # a change within the file system's tick is seen
    clock[0] = 33.0  # where a folder has no time
    folder.hashes()
    assert listed[0] == 3
    clock[0] = 40.0
    clusters.names("old")
    assert folder.hashes() == {hash_key("hr_old")}


def test_a_file_that_is_no_hash_is_told_of_once_and_keeps_nothing_up(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clusters = TwoClusters(tmp_path)
    clusters.names("old")
    (tmp_path / "laptop").write_text("")
    live = clusters.cluster(0)
    live.refresh()
    refusal(live.current, "old")
    assert [each.getMessage() for each in caplog.records] == [
        "laptop: revokes no key: a file's name must be 64 hex digits"
    ]


def test_a_key_is_revoked_beside_tenants_that_cannot_be_read() -> None:
    store, clock = Store(text_of("old")), [0.0]
    live = lively(store, clock)
    store.text, store.revoked = "tenants: {a: {weight: -1}}", frozenset({hash_key("hr_old")})
    assert live.refresh()
    assert live.problem is not None
    refusal(live.current, "old")


def test_an_older_look_takes_back_no_revocation() -> None:
    """The follower has asked what is revoked, and hears it after an operator's key was revoked."""
    store, clock = Store(text_of("old", "new")), [0.0]
    live = lively(store, clock)
    revoking = threading.Thread(target=live.revoke, args=("old",))

    def slow_answer() -> frozenset[str]:
        found = store.revoked
        if revoking.ident is None:
            revoking.start()
            revoking.join(0.02)  # as much as it can do meanwhile
        return found

    live._revocations = replace(live._revocations, fetch=slow_answer)
    live.refresh()
    revoking.join(5.0)
    refusal(live.current, "old")
    assert by(live.current, "new").key == "new"


def test_a_store_that_is_away_leaves_all_as_it_was_and_tells_its_age() -> None:
    store, clock = Store(text_of("old", "new")), [0.0]
    store.revoked = frozenset({hash_key("hr_old")})
    live = lively(store, clock)
    refusal(live.current, "old")
    store.away, clock[0] = True, 40.0
    assert not live.refresh()
    refusal(live.current, "old")
    assert by(live.current, "new").key == "new"
    assert live.age_s == 40.0
    store.away = False
    live.refresh()
    assert live.age_s == 0.0


def test_a_key_is_revoked_by_its_name_and_listed_so() -> None:
    live = lively(Store(text_of("old", "new")), [0.0])
    found = {
        "revoked": "old", "owner": "tenant a", "hash": hash_key("hr_old"), "folder": False,
    }  # fmt: skip
    assert live.revoke("old") == found
    refusal(live.current, "old")
    assert {row["id"]: row["state"] for row in live.key_rows()} == {"old": "revoked", "new": "good"}
    assert [row.get("hash") for row in live.key_rows()] == [hash_key("hr_old"), None]
    with pytest.raises(ValueError, match="no key is called 'gone'; there are: old, new"):
        live.revoke("gone")
