"""A file that is applied to a server with canaries: what begins, goes on and ends."""

from __future__ import annotations

import pytest
from rolled_out import ROLLOUT, Stand, model

from deployments.contract.model_arguments import digests, model_arguments
from deployments.control.canary import canary_settings
from deployments.control.deployed import Canary, Deployed
from deployments.control.scaling.scaling_terms import scaling_document
from deployments.settings.channel import ChannelSettings
from deployments.settings.model import ModelSettings
from deployments.settings.tree import Settings

OLD, NEW = {"m": model(1), "n": model(1)}, {"m": model(2), "n": model(1)}


@pytest.fixture
def stand(tmp_path) -> Stand:
    return Stand(tmp_path, OLD)


def test_a_changed_model_with_a_rollout_gets_a_canary_and_the_rest_changes_at_once(stand):
    plain = model(3)
    del plain["rollout"]
    changes = stand.apply({"m": model(2), "n": plain, "new": model(4)})
    assert stand.running == {"m": 1, "n": 3, "new": 4, "m@canary": 2}
    assert (changes["rolled out"], changes["restarted"], changes["added"]) == (
        ["m"],
        ["n"],
        ["new"],
    )
    assert changes["rollouts"] == {"m": stand.record("m")["id"]}
    assert [a["model"] for a in stand.cluster.rollouts()] == ["m"]


def test_a_canary_that_cannot_start_is_taken_back_and_the_live_version_is_untouched(stand):
    stand.cluster.broken.add(("m@canary", 2))
    error = stand.apply(NEW)["error"]
    assert "model m cannot start and goes on as it was: no such file" in error
    assert stand.running == {"m": 1, "n": 1}
    assert all(put["m"] == 1 for put in stand.cluster.puts)
    assert stand.cluster.rollouts() == []


@pytest.mark.parametrize("broken", [False, True])
def test_a_canary_that_starts_is_shown_and_cannot_be_decided_yet(stand, broken):
    seen, settle = [], stand.cluster.settle

    def look(*args):
        if not seen:
            seen.append((stand.record("m")["phase"], stand.commands.promote({"model": "m"})))
        return settle(*args)

    stand.cluster.settle = look
    if broken:
        stand.cluster.broken.add(("m@canary", 2))
    stand.apply(NEW)
    ((phase, refused),) = seen
    assert phase == "starting"
    assert "still starting" in refused["error"]
    after = [record["phase"] for record in stand.commands.rollouts({})["rollouts"]]
    assert after == ([] if broken else ["checking"])


def test_the_same_file_again_changes_nothing_and_the_rollout_goes_on(stand):
    number = stand.apply(NEW)["rollouts"]["m"]
    again = stand.apply(NEW)
    assert again.pop("rollouts") == {"m": number}
    assert {what: names for what, names in again.items() if names} == {"rollouts that go on": ["m"]}
    assert (stand.record("m")["id"], stand.record("m")["over"]) == (number, False)


def test_the_same_file_again_says_so_before_it_is_applied(stand):
    stand.apply(NEW)
    stand.tick(20)
    differ = stand.diff(NEW)
    assert {what: names for what, names in differ.items() if names} == {
        "rollouts that go on": ["m"]
    }


def test_the_same_version_with_other_numbers_changes_the_live_versions(stand):
    number = stand.apply(NEW)["rollouts"]["m"]
    more = {**NEW, "m": model(2, replicas={"count": 3})}
    again = stand.apply(more)
    assert (again["updated"], again["restarted"], again["rollouts"]) == (["m"], [], {"m": number})
    live = stand.live.settings.models["m"]
    assert (live.options["base_ms"], live.replicas.least) == (1, 3)
    assert stand.running == {"m": 1, "n": 1, "m@canary": 2}
    assert stand.apply(more)["updated"] == []


def test_a_canary_that_fails_with_other_numbers_ends_its_rollout(stand):
    stand.apply(NEW)
    stand.cluster.broken.add(("m@canary", 2))
    rollout = {**ROLLOUT, "replicas": 2}
    error = stand.apply({**NEW, "m": model(2, rollout=rollout)})["error"]
    assert "model m cannot start and goes on as it was" in error
    assert stand.running == {"m": 1, "n": 1}
    assert (stand.record("m")["phase"], stand.told) == (
        "aborted",
        [("m", "aborted", "no such file")],
    )


def test_numbers_that_come_with_a_new_version_wait_for_its_promotion(stand):
    more = {**NEW, "m": model(2, replicas={"count": 3})}
    for _ in range(2):
        assert stand.apply(more)["updated"] == []
        assert stand.live.settings.models["m"].replicas.least == 1
    stand.commands.promote({"model": "m"})
    stand.tick(6)
    assert stand.live.settings.models["m"].replicas.least == 3


def test_other_models_change_beside_a_rollout(stand):
    stand.apply(NEW)
    stand.apply({**NEW, "x": model(7)})
    assert stand.running == {"m": 1, "n": 1, "x": 7, "m@canary": 2}
    assert stand.told == []


def test_a_third_version_takes_the_canarys_place_and_begins_anew(stand):
    first = stand.apply(NEW)["rollouts"]["m"]
    second = stand.apply({**NEW, "m": model(3)})["rollouts"]["m"]
    assert second > first
    assert stand.running == {"m": 1, "n": 1, "m@canary": 3}
    assert [how for _, how, _ in stand.told] == ["aborted"]
    stand.tick(20)
    assert stand.running == {"m": 1, "n": 1, "m@canary": 3}


@pytest.mark.parametrize("placed", [False, True])
def test_the_old_settings_end_a_rollout(stand, placed):
    stand.apply(NEW)
    if placed:
        stand.cluster.starting.add("m")
        stand.commands.promote({"model": "m"})
        stand.tick()
        assert stand.running["m"] == 2
    ended = stand.apply(OLD)
    assert (ended["restarted"], len(ended["rollouts ended"])) == ([], 1)
    assert stand.running["m"] == 1
    stand.tick(5)
    assert stand.running == {"m": 1, "n": 1}
    assert "settings as they were" in stand.record("m")["why"]


def test_a_version_without_a_rollout_is_put_at_once(stand):
    stand.apply(NEW)
    at_once = model(2)
    del at_once["rollout"]
    assert stand.apply({**NEW, "m": at_once})["restarted"] == ["m"]
    assert stand.running["m"] == 2
    stand.tick(5)
    assert stand.running == {"m": 2, "n": 1}


def test_a_removed_model_goes_with_its_canary(stand):
    stand.apply(NEW)
    stand.apply({"n": model(1)})
    assert stand.running == {"n": 1}
    stand.tick(5)
    assert stand.running == {"n": 1}


def test_a_version_that_was_aborted_may_be_tried_again(stand):
    stand.apply(NEW)
    stand.cluster.abort_rollout("m", "it fails")
    stand.tick()
    assert stand.apply(NEW)["rolled out"] == ["m"]
    assert not stand.record("m")["over"]
    stand.tick(20)
    assert stand.running == {"m": 1, "n": 1, "m@canary": 2}


def test_a_registry_that_is_silent_hears_of_the_rollout_later(stand, monkeypatch):
    begin, monkeyed = stand.cluster.begin_rollout, []

    def silent_once(*args):
        if not monkeyed:
            monkeyed.append(1)
            stand.cluster.silent = True
        try:
            return begin(*args)
        finally:
            stand.cluster.silent = False

    monkeypatch.setattr(stand.cluster, "begin_rollout", silent_once)
    stand.apply(NEW)
    assert stand.cluster.rollouts() == []
    stand.tick()
    assert [a["model"] for a in stand.cluster.rollouts()] == ["m"]


def test_rollback_goes_one_version_further_back_each_time(stand):
    at_once = [{"m": {k: v for k, v in model(ms).items() if k != "rollout"}} for ms in (2, 3)]
    for models in at_once:
        stand.apply(models)
    assert stand.rollback("m")["left"] == 1
    assert stand.running == {"m": 2}
    assert stand.rollback("m")["left"] == 0
    assert stand.running == {"m": 1}
    assert "begins with its file" in stand.rollback("m")["error"]


def test_a_promoted_version_is_rolled_back_without_a_canary(stand):
    stand.apply(NEW)
    stand.commands.promote({"model": "m"})
    stand.tick(6)
    assert stand.running == {"m": 2, "n": 1}
    assert stand.rollback("m")["rolled back"] == ["m"]
    assert stand.running == {"m": 1, "n": 1}


def test_rollback_keeps_the_number_of_replicas(stand):
    many = {k: v for k, v in model(2, replicas={"count": 3}).items() if k != "rollout"}
    stand.apply({**OLD, "m": many})
    stand.rollback("m")
    live = stand.live.settings.models["m"]
    assert (live.options["base_ms"], live.replicas.least) == (1, 3)


def test_rollback_says_why_it_cannot(stand):
    assert stand.rollback("x")["error"] == "no model 'x'; there are: m, n"
    stand.apply(NEW)
    assert "`headrace rollout abort m`" in stand.rollback("m")["error"]


def test_a_version_that_no_longer_starts_is_no_way_back(stand):
    plain = {k: v for k, v in model(2).items() if k != "rollout"}
    stand.apply({**OLD, "m": plain})
    stand.cluster.broken.add(("m", 1))
    assert "goes on as it was" in stand.rollback("m")["error"]
    assert stand.running["m"] == 2
    stand.cluster.broken.clear()
    assert stand.rollback("m")["left"] == 0


def test_a_canarys_replicas_are_told_what_the_promoted_ones_will_be():
    """So that these find what those measured, which they look up by the digest of it."""
    new = ModelSettings.model_validate(
        model(2, replicas={"min": 2, "max": 4, "slots": 3}, scaling={"policy": "latency-first"})
    )
    channel = ChannelSettings()
    both = [model_arguments("m", each, {}, channel) for each in (new, canary_settings(new))]
    assert digests(both[0]) == digests(both[1])


def test_a_canary_has_a_fixed_count_and_is_never_in_the_pool():
    settings = Settings.model_validate({"models": OLD, "scaling": {"pool": {"max": 1}}})
    new = settings.models["m"].model_copy(update={"options": {"base_ms": 2}})
    listed = Deployed(settings, {"m": Canary("m", new, 1, 0.0)}).listed()
    document = scaling_document(listed)
    (group,) = document.settings.models["m@canary"].groups
    assert (group.min, group.max) == (1, 1)
    assert sorted(each.name for each in document.pool_models) == ["m", "n"]
