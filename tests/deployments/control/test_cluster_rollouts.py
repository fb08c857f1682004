"""Rollouts of a cluster: whatever process ends meanwhile, the list says how to go on."""

from __future__ import annotations

import pytest
from cluster_with_rollouts import Stand, milliseconds
from rolled_out import model

from deployments.control.dashboard import ClusterError

OLD, NEW = {"m": model(1), "n": model(1)}, {"m": model(2), "n": model(1)}
ALONE, BESIDE, PROMOTED = (
    {"m": 1, "n": 1},
    {"m": 1, "n": 1, "m@canary": 2},
    {"m": 2, "n": 1},
)  # fmt: skip
MANY = {"replicas": {"count": 4}}


@pytest.fixture
def stand() -> Stand:
    """With a rollout of `m` under way, whose canary runs."""
    made = Stand(OLD)
    done = made.deploy(NEW)
    assert (dict(done.begun), made.running) == ({"m": 2}, BESIDE)
    made.tick(2)
    assert (made.record("m")["phase"], made.record("m")["over"]) == ("checking", False)
    return made


def outcome(stand: Stand) -> tuple[str, str, bool]:
    record = stand.record("m")
    return record["phase"], record["why"], record["over"]


def told(stand: Stand) -> dict:
    """What the autoscaler is told of each model: milliseconds are not, so replicas."""
    control = stand.listed.control
    found = {**control.scaling["models"], **control.versions}
    return {name: section.get("replicas", {}).get("count") for name, section in found.items()}


def test_while_nothing_is_decided_nothing_is_put(stand):
    puts = stand.serve.puts
    stand.tick(20)
    assert stand.serve.puts == puts


def test_a_model_without_a_rollout_changes_at_once_and_nothing_else_runs():
    made = Stand({"m": model(1, rollout=None)})
    done = made.deploy({"m": model(2, rollout=None)})
    assert (dict(done.begun), made.running) == ({}, {"m": 2})


def test_a_promoted_version_takes_the_live_ones_place_and_the_canary_goes(stand):
    stand.serve.starting.add("m")
    stand.remote.decide("m")
    stand.tick(3)
    assert stand.running == {"m": 2, "n": 1, "m@canary": 2}
    assert outcome(stand) == ("promoting", "", False)
    stand.serve.starting.clear()
    stand.tick()
    assert outcome(stand) == ("promoted", "", True)
    stand.tick(4)
    assert stand.running == PROMOTED


def test_an_aborted_version_goes_and_the_live_one_is_never_touched(stand):
    stand.serve.abort_rollout("m", "it fails")
    stand.tick(5)
    assert stand.running == ALONE
    assert outcome(stand) == ("aborted", "it fails", True)


def test_a_canary_that_cannot_start_ends_its_rollout_with_its_words():
    made = Stand(OLD)
    made.serve.broken.add(("m@canary", 2))
    made.deploy(NEW)
    made.tick(5)
    assert made.running == ALONE
    assert outcome(made) == ("aborted", "its canary cannot start: no such file", True)


def test_a_version_that_does_not_run_in_the_live_ones_place_is_taken_back(stand):
    stand.serve.broken.add(("m", 2))
    with stand.driver_away():
        stand.remote.decide("m")
    stand.tick(3)
    assert stand.running == BESIDE
    assert outcome(stand)[1] == "it does not run in the live version's place: no such file"
    stand.tick(4)
    assert stand.running == ALONE


@pytest.mark.parametrize("at", range(7))
def test_a_driver_that_is_replaced_at_any_time_goes_on(at):
    made = Stand(OLD)
    made.deploy(NEW)
    for second in range(12):
        if second == at:
            made.restart_driver()
        if second == 2:
            made.remote.decide("m")
        made.tick()
    made.tick(4)
    assert (made.running, outcome(made)) == (PROMOTED, ("promoted", "", True))


def test_a_registry_that_starts_anew_is_told_of_the_rollout_and_of_what_was_asked(stand):
    stand.remote.decide("m", "a bad day")
    stand.serve.restart_registry()
    stand.tick(8)
    assert (stand.running, outcome(stand)) == (ALONE, ("aborted", "a bad day", True))


def test_the_same_file_lets_the_rollout_go_on(stand):
    done = stand.deploy(NEW)
    assert (dict(done.begun), dict(done.kept), dict(done.ended)) == ({}, {"m": 2}, {})
    assert [each.application for each in done.differences] == []
    stand.remote.decide("m")
    stand.tick(8)
    assert stand.running == PROMOTED


def test_another_version_replaces_the_canary_and_begins_anew(stand):
    done = stand.deploy({**NEW, "m": model(3)})
    assert dict(done.begun) == {"m": 3}
    assert "another version" in done.ended["m"]
    stand.tick()
    assert stand.running == {**BESIDE, "m@canary": 3}
    (account,) = [a for a in stand.serve.rollouts() if a["phase"] == "checking"]
    assert stand.record("m")["id"] == 3
    assert account["number"] > 0
    stand.remote.decide("m")
    stand.tick(8)
    assert stand.running == {"m": 3, "n": 1}


@pytest.mark.parametrize(
    ("file", "runs", "why"),
    [
        (OLD, ALONE, "as they were"),
        ({**NEW, "m": model(2, rollout=None)}, PROMOTED, "changes it at once"),
    ],
)
def test_a_file_that_has_the_old_version_or_no_rollout_ends_it(stand, file, runs, why):
    with stand.driver_away():
        done = stand.deploy(file)
    assert why in done.ended["m"]
    assert stand.running == {**runs, "m@canary": 2}  # it may have something in hand
    stand.tick(5)
    assert stand.running == runs
    assert outcome(stand)[0] == "aborted"


def test_a_file_with_the_old_version_puts_it_back_while_the_new_one_is_promoted(stand):
    stand.serve.starting.add("m")
    stand.remote.decide("m")
    stand.tick(2)
    assert stand.running["m"] == 2
    with stand.driver_away():
        stand.deploy(OLD)
    assert stand.running == BESIDE
    stand.serve.starting.clear()
    stand.tick(5)
    assert stand.running == ALONE


def test_a_file_without_the_model_removes_it_and_its_canary(stand):
    done = stand.deploy({"n": model(1)})
    assert "has not the model" in done.ended["m"]
    assert stand.running == {"n": 1}
    stand.tick(5)
    assert stand.running == {"n": 1}


def test_the_autoscaler_is_told_of_the_canary_and_of_the_live_version():
    made = Stand({"m": model(1, **MANY)})
    assert told(made) == {"m": 4}
    made.deploy({"m": model(2, **MANY)})
    assert told(made) == {"m": 4, "m@canary": 2}  # half, as its last step
    made.tick()
    made.remote.decide("m")
    made.tick(8)
    assert (told(made), made.running) == ({"m": 4}, {"m": 2})


def test_other_numbers_of_replicas_apply_to_the_live_version_at_once():
    made = Stand({"m": model(1, **MANY)})
    made.deploy({"m": model(2, **MANY)})
    done = made.deploy({"m": model(2, replicas={"count": 6})})
    assert (dict(done.kept), told(made)["m"]) == ({"m": 2}, 6)
    deployment = made.serve.listed["model-m"]["deployments"][0]
    assert deployment["autoscaling_config"]["max_replicas"] == 6
    made.tick()
    made.serve.abort_rollout("m", "it fails")
    made.tick(5)
    assert (told(made), made.running) == ({"m": 6}, {"m": 1})


def test_what_is_asked_of_a_rollout_that_cannot_be_decided_is_refused(stand):
    with pytest.raises(ClusterError, match="no rollout of n is known"):
        stand.remote.decide("n")
    with stand.driver_away():
        stand.remote.decide("m", "a bad day")
        with pytest.raises(ClusterError, match="decided already"):
            stand.remote.decide("m")
    stand.tick(5)
    with pytest.raises(ClusterError, match=r"is over: aborted \(a bad day\)"):
        stand.remote.decide("m")


def test_a_canary_that_starts_can_be_aborted_but_not_promoted():
    made = Stand(OLD)
    made.serve.starting.add("m@canary")
    made.deploy(NEW)
    made.tick(3)
    with pytest.raises(ClusterError, match="still starting"):
        made.remote.decide("m")
    made.remote.decide("m", "a bad day")
    made.tick(5)
    assert (made.running, outcome(made)[:2]) == (ALONE, ("aborted", "a bad day"))


def test_a_cluster_that_does_not_answer_changes_nothing_and_is_asked_again(stand):
    stand.serve.abort_rollout("m", "it fails")
    stand.serve.silent = True
    with pytest.raises(ClusterError):
        stand.tick()
    stand.serve.silent = False
    stand.tick(5)
    assert stand.running == ALONE


def test_an_application_that_is_being_deleted_is_not_put_again(stand):
    stand.serve.abort_rollout("m", "it fails")
    stand.tick(4)
    assert "model-m@canary" in stand.serve.deleting
    stand.deploy(NEW)
    stand.tick(2)
    assert stand.record("m")["id"] == 3


def test_the_old_version_again_ends_a_replacement_and_the_canary_before_it():
    made = Stand(OLD)
    made.deploy(NEW)
    made.serve.starting.add("m")
    with made.driver_away():
        made.deploy({**NEW, "m": model(3, rollout=None)})
    assert made.running == {"m": 3, "n": 1, "m@canary": 2}
    made.serve.starting.clear()
    with made.driver_away():
        made.deploy(OLD)
    made.tick(12)
    assert made.running == ALONE
    assert made.listed.entries["m"].stage == "over"


# ---- versions that change in place -----------------------------------------------------------

PLAIN, NEXT = {"m": model(1, rollout=None)}, {"m": model(2, rollout=None)}


def test_a_version_that_cannot_start_is_taken_back_and_whoever_waits_is_told():
    made = Stand(PLAIN)
    made.serve.broken.add(("m", 2))
    done = made.deploy(NEXT)
    failed = made.remote.watch(done, 30, lambda line: None)
    assert failed == {"model-m": "no such file"}
    assert made.running == {"m": 1}
    assert made.listed.history("m") == ()


def test_a_new_model_that_cannot_start_leaves_and_an_optional_one_stays():
    made = Stand(PLAIN)
    made.serve.broken |= {("k", 1), ("o", 1)}
    done = made.deploy({**PLAIN, "k": model(1), "o": model(1, optional=True)})
    failed = made.remote.watch(done, 30, lambda line: None)
    assert failed == {"model-k": "no such file", "model-o": "no such file"}
    assert made.running == {"m": 1, "o": 1}


def test_a_version_that_is_late_is_taken_back_and_one_that_replaces_none_goes_on_starting():
    late = {"replicas": {"start_timeout_s": 5}}
    made = Stand({"m": model(1, rollout=None, **late)})
    made.serve.starting |= {"m", "k"}
    made.deploy({"m": model(2, rollout=None, **late), "k": model(1, **late)})
    made.tick(10)
    assert made.running == {"m": 1, "k": 1}
    assert made.listed.entries["m"].why == "not ready after 5 s"
    assert made.listed.entries["k"].stage == "replacing"


def test_a_model_goes_back_version_by_version_with_the_present_numbers():
    made = Stand({"m": model(1, rollout=None)})
    for version in (2, 3):
        made.deploy({"m": model(version, rollout=None, replicas={"count": version})})
        made.tick(2)
    for expected, left in ((2, 1), (1, 0)):
        done, known = made.remote.back("m")
        assert made.remote.watch(done, 30, lambda line: None) == {}
        assert (made.running, known, told(made)) == ({"m": expected}, left, {"m": 3})
    with pytest.raises(ClusterError, match="no other version of m has run"):
        made.remote.back("m")


def test_a_promoted_version_can_be_taken_back_too(stand):
    stand.remote.decide("m")
    stand.tick(10)
    assert stand.running == PROMOTED
    stand.remote.back("m")
    stand.tick(2)
    assert stand.running == ALONE


def test_a_version_before_that_does_not_start_any_more_leaves_the_present_one():
    made = Stand(PLAIN)
    made.deploy(NEXT)
    made.tick(2)
    made.serve.broken.add(("m", 1))
    done, _ = made.remote.back("m")
    assert made.remote.watch(done, 30, lambda line: None) == {"model-m": "no such file"}
    assert (made.running, len(made.listed.history("m"))) == ({"m": 2}, 1)


def test_a_model_whose_version_changes_cannot_go_back(stand):
    with pytest.raises(ClusterError, match="is being rolled out"):
        stand.remote.back("m")
    with pytest.raises(ClusterError, match="there are: m, n"):
        stand.remote.back("x")


def test_only_the_last_five_versions_are_kept_and_none_of_a_model_that_left():
    made = Stand(PLAIN)
    for version in range(2, 9):
        made.deploy({"m": model(version, rollout=None)})
        made.tick(2)
    kept = [milliseconds(each.application) for each in made.listed.history("m")]
    assert kept == [3, 4, 5, 6, 7]
    made.deploy({"n": model(1)})
    assert made.listed.control.history == {}
