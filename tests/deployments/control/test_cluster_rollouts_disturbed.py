"""Rollouts of a cluster beside files that are deployed at the worst moment, and what has failed."""

from __future__ import annotations

import contextlib

import pytest
from cluster_with_rollouts import THEIRS, Stand, milliseconds
from rolled_out import model

from deployments.contract.app_names import CONTROL_APP
from deployments.control.dashboard import ClusterError
from deployments.control.scaling.scaling_terms import published_scaling
from deployments.control.serve_config import LOGGING

OLD, NEW = {"m": model(1), "n": model(1)}, {"m": model(2), "n": model(1)}
ALONE, BESIDE = {"m": 1, "n": 1}, {"m": 1, "n": 1, "m@canary": 2}


@pytest.fixture
def stand() -> Stand:
    """With a rollout of `m` under way, whose canary runs."""
    made = Stand(OLD)
    made.deploy(NEW)
    made.tick(2)
    return made


def hold_a_put(stand: Stand) -> None:
    """The driver's next list is on its way, and arrives at the next pause of a command."""
    stand.serve.holds = True
    with contextlib.suppress(ClusterError):
        stand.tick()
    stand.serve.holds = False
    assert stand.serve.late is not None


def end(stand: Stand, name: str = "m") -> tuple[str, bool]:
    record = stand.record(name)
    return record["phase"], record["over"]


def test_a_file_deployed_while_the_driver_asks_the_registry_is_not_overruled(stand):
    stand.serve.promote("m")
    stand.serve.before_rollouts = lambda: stand.deploy(OLD)
    stand.tick()
    assert stand.running == BESIDE  # not the new version in the live one's place
    stand.tick(6)
    assert (stand.running, end(stand)) == (ALONE, ("aborted", True))


@pytest.mark.parametrize("rollout", [False, True])
def test_a_change_ends_where_every_answer_takes_a_second(rollout):
    made = Stand({"m": model(1)})
    made.serve.slow_s = 1.0
    changed = model(2) if rollout else {k: v for k, v in model(2).items() if k != "rollout"}
    done = made.deploy({"m": changed})
    assert (done.begun, done.replaced) == (({"m": 2}, {}) if rollout else ({}, {"m": 2}))
    made.tick(8)
    if rollout:
        made.remote.decide("m")
        made.tick(8)
    assert made.listed.entries["m"].stage == "over"
    assert made.running == {"m": 2}


def test_a_file_deployed_while_a_slow_driver_asks_is_not_overruled(stand):
    stand.serve.slow_s = 1.0
    stand.serve.promote("m")
    stand.serve.before_rollouts = lambda: stand.deploy(OLD)
    stand.tick()
    assert stand.running == BESIDE
    stand.tick(8)
    assert (stand.running, end(stand)) == (ALONE, ("aborted", True))


def test_a_file_that_a_list_of_the_driver_undid_is_put_again(stand):
    stand.serve.promote("m")
    hold_a_put(stand)
    done = stand.deploy({"m": model(3), "n": model(4)})
    assert done.begun["m"] == 3
    assert stand.listed.entries["n"].id == 2
    promoted = {"m": 2, "n": 1}  # by the driver's list, before the file's
    assert stand.running == {**promoted, "m@canary": 3, "n@canary": 4}


def test_an_order_that_a_list_of_the_driver_undid_is_given_again(stand):
    stand.serve.registry.abort_rollout("m", "it fails")
    hold_a_put(stand)
    stand.remote.freeze(True)
    assert stand.listed.control.tenants["controllers"] == {"frozen": True}
    stand.tick(6)
    assert stand.running == ALONE
    assert stand.listed.control.tenants["controllers"] == {"frozen": True}


def test_a_list_that_keeps_undoing_changes_is_reported(stand):
    before = stand.serve.listed
    stand.meanwhile = lambda: setattr(stand.serve, "listed", before)
    with pytest.raises(ClusterError, match="others changed the cluster 5 times"):
        stand.remote.decide("m")


def test_an_end_is_told_once_though_a_late_list_is_undone_after_it(stand, caplog):
    stand.serve.abort_rollout("m", "it fails")
    before = stand.serve.listed
    stand.tick()
    assert stand.listed.entries["m"].stage == "leaving"
    stand.serve.listed = before
    stand.tick()
    assert stand.listed.entries["m"].stage == "leaving"  # the late list was undone
    told = [line for line in caplog.messages if "rollout of m: aborted" in line]
    assert len(told) == 1


def test_a_promotion_that_another_list_undid_is_done_again(stand):
    stand.serve.starting.add("m")
    before = stand.serve.listed
    stand.remote.decide("m")
    stand.tick(2)
    assert stand.running["m"] == 2
    stand.serve.finish_rollout("m")
    stand.serve.listed = before
    stand.serve.starting.clear()
    stand.tick(8)
    assert (stand.running, end(stand)) == ({"m": 2, "n": 1}, ("promoted", True))


def test_another_version_during_a_promotion_puts_the_one_before_back(stand):
    stand.serve.starting.add("m")
    stand.remote.decide("m")
    stand.tick(2)
    assert stand.running["m"] == 2
    done = stand.deploy({"m": model(3), "n": model(1)})
    assert dict(done.begun) == {"m": 3}
    assert stand.running == {**ALONE, "m@canary": 3}


@pytest.mark.parametrize("calls", range(12))
def test_a_version_that_is_taken_back_ends_whenever_nobody_answers(stand, calls):
    stand.serve.broken.add(("m", 2))
    stand.remote.decide("m")
    stand.serve.calls_left = calls
    for _ in range(3):
        try:
            stand.tick()
        except ClusterError:
            break
    stand.serve.calls_left, stand.serve.silent = None, False
    stand.restart_driver()
    stand.tick(6)
    assert (stand.running, end(stand)) == (ALONE, ("aborted", True))


def test_an_end_is_audited_once_though_the_answer_to_its_list_was_lost(stand, caplog):
    with stand.driver_away():
        stand.remote.decide("m", "a bad day")
    stand.serve.loses_answers = True
    for _ in range(3):
        with contextlib.suppress(ClusterError):
            stand.tick()
    stand.serve.loses_answers = False
    stand.tick(6)
    told = [line for line in caplog.messages if "rollout of m: aborted" in line]
    assert (end(stand), len(told)) == (("aborted", True), 1)


def test_a_model_that_comes_back_does_not_hear_what_was_asked_of_an_earlier_rollout():
    made = Stand(OLD)
    made.deploy({"m": model(2), "n": model(2)})
    made.tick(2)
    made.remote.decide("m", "a bad day")
    made.tick(1)
    made.deploy({"n": model(2)})
    assert end(made) == ("aborted", True)
    made.deploy({"m": model(1), "n": model(2)})
    done = made.deploy({"m": model(3), "n": model(2)})
    made.tick(3)
    assert dict(done.begun) == {"m": 4}
    assert made.running["m@canary"] == 3
    assert end(made) == ("checking", False)


def test_a_live_version_that_could_not_start_is_replaced_at_once():
    made = Stand(OLD)
    made.serve.broken.add(("m", 1))
    done = made.deploy(NEW)
    assert (dict(done.begun), made.running) == ({}, {"m": 2, "n": 1})


@pytest.mark.parametrize("milliseconds", [2, 3])
def test_a_live_version_that_fails_during_its_rollout_is_replaced_at_once(stand, milliseconds):
    stand.serve.broken.add(("m", 1))
    done = stand.deploy({"m": model(milliseconds), "n": model(1)})
    assert "at once" in done.ended["m"]
    assert stand.running["m"] == milliseconds
    stand.tick(5)
    assert stand.running == {"m": milliseconds, "n": 1}


def test_a_rollout_that_went_on_while_a_failed_model_was_deleted_is_not_set_back(stand):
    stand.deploy({**NEW, "k": model(7, rollout=None)})
    stand.serve.broken.add(("k", 7))
    stand.remote.decide("m")
    stand.deploy({**NEW, "k": model(7, rollout=None)})
    stand.tick(6)
    assert (stand.running["m"], end(stand)) == (2, ("promoted", True))


def test_a_canary_that_is_gone_is_started_again_by_the_same_file(stand):
    listed = dict(stand.serve.listed)
    del listed["model-m@canary"]
    stand.serve.listed = listed
    done = stand.deploy(NEW)
    assert (dict(done.kept), stand.running) == ({"m": 2}, BESIDE)


def test_a_live_version_goes_on_with_a_fallback_and_a_pool_that_its_file_had():
    pool = {"scaling": {"pool": {"max": 1, "memory_mib": 10}}}
    made = Stand({"m": model(1)})
    made.deploy({"m": model(1, fallback="n", rollout=None), "n": model(1)}, **pool)
    made.deploy({"m": model(2)}, **pool)
    assert made.running == {"m": 1, "m@canary": 2}
    told = published_scaling(made.listed.control)
    assert told.settings.models.keys() == {"m", "m@canary"}
    assert [each.args["settings"]["options"]["base_ms"] for each in told.pool_models] == [1]


def test_scaling_of_the_file_holds_for_the_live_version_while_its_rollout_goes_on():
    made = Stand({"m": model(1, replicas={"min": 1, "max": 4})})
    made.deploy({"m": model(2, replicas={"min": 1, "max": 4})})
    down = {"policy": {"mode": "observe"}}
    made.deploy({"m": model(2, replicas={"min": 2, "max": 5}, scaling=down)})
    section = made.listed.control.scaling["models"]["m"]
    told = published_scaling(made.listed.control).settings.models["m"]
    assert section["scaling"] == down
    assert (told.groups[0].min, told.groups[0].max) == (2, 5)
    assert told.policy.mode.value == "observe"


def test_who_waits_for_a_rollout_outlives_a_dashboard_that_is_away_for_a_while(stand):
    stand.serve.silent = True
    waited = []

    def pause(seconds: float) -> None:
        waited.append(seconds)
        stand.serve.silent = len(waited) < 3

    stand.remote._pause = pause
    with pytest.raises(ClusterError):
        stand.remote.rollouts()
    assert [each["model"] for each in stand.remote.rollouts(60)] == ["m"]
    assert len(waited) == 3


def test_all_lists_have_the_options_for_logs_and_others_applications(stand):
    stand.serve.listed["theirs"] = THEIRS
    puts = []
    put = stand.serve.put
    stand.serve.put = lambda config: (puts.append(config), put(config))
    stand.remote.decide("m")
    stand.tick(8)
    assert len(puts) >= 4
    assert all(each["logging_config"] == LOGGING for each in puts)
    assert all(each["applications"][-1] == THEIRS for each in puts)


def test_removing_everything_ends_though_a_driver_puts_its_list_once_more(stand):
    stand.serve.promote("m")
    hold_a_put(stand)
    stand.remote.remove(lambda line: None)
    assert stand.serve.listed == {}


@pytest.mark.slow
def test_a_list_with_many_rollouts_stays_small():
    many = {f"model-{n}": model(1, replicas={"min": 1, "max": 4}) for n in range(50)}
    made = Stand(many)
    made.deploy({name: {**each, "options": {"base_ms": 2}} for name, each in many.items()})
    made.tick(2)
    entries = made.listed.entries
    assert len(entries) == 50
    assert all(milliseconds(entry.old.application) == 1 for entry in entries.values())
    size = len(str(made.serve.listed[CONTROL_APP]))
    assert size < 50 * 6_000
