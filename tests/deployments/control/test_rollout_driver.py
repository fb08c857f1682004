"""What the registry decides is carried out: every way a canary goes, and nothing is lost on it."""

from __future__ import annotations

import pytest
from rolled_out import Stand, model

from deployments.control.dashboard import ClusterError

OLD, NEW = {"m": model(1), "n": model(1)}, {"m": model(2), "n": model(1)}
ALONE, BESIDE = {"m": 1, "n": 1}, {"m": 1, "n": 1, "m@canary": 2}


@pytest.fixture
def stand(tmp_path) -> Stand:
    """With a rollout of `m` under way."""
    made = Stand(tmp_path, OLD)
    made.apply(NEW)
    assert made.running == BESIDE
    return made


def test_while_nothing_is_decided_nothing_is_put(stand):
    puts = len(stand.cluster.puts)
    stand.tick(20)
    assert len(stand.cluster.puts) == puts
    assert (stand.record("m")["phase"], stand.record("m")["over"]) == ("checking", False)


def test_a_promoted_version_takes_the_live_ones_place_and_the_canary_goes(stand):
    assert stand.commands.promote({"model": "m"}) == {"model": "m"}
    stand.cluster.starting.add("m")
    stand.tick(3)
    assert stand.running == {"m": 2, "n": 1, "m@canary": 2}
    assert stand.record("m")["phase"] == "promoting"
    assert stand.live.settings.models["m"].options["base_ms"] == 1
    stand.cluster.starting.clear()
    stand.tick()
    assert stand.live.settings.models["m"].options["base_ms"] == 2
    assert (stand.record("m")["phase"], stand.record("m")["over"]) == ("promoted", True)
    assert "m@canary" in stand.running  # it may have something in hand
    stand.tick(3)
    assert stand.running == {"m": 2, "n": 1}
    assert stand.cluster.forgotten == ["m@canary"]
    assert stand.told == [("m", "promoted", "")]


@pytest.mark.parametrize("promoted", [True, False])
def test_no_step_of_a_rollout_takes_back_what_an_operator_has_frozen(stand, promoted):
    stand.cluster.freeze(True)  # through a gateway
    published = len(stand.cluster.published)
    decided = stand.commands.promote if promoted else stand.commands.abort
    assert decided({"model": "m"}) == {"model": "m"}
    stand.tick(8)
    assert stand.running == {"m": 2 if promoted else 1, "n": 1}
    assert (stand.cluster.switch, len(stand.cluster.published)) == (True, published)


def test_an_aborted_version_goes_and_the_live_one_is_never_touched(stand):
    stand.cluster.abort_rollout("m", "it fails")
    stand.tick(5)
    assert all(put["m"] == 1 for put in stand.cluster.puts)
    assert stand.running == ALONE
    assert stand.told == [("m", "aborted", "it fails")]
    assert stand.record("m")["why"] == "it fails"


@pytest.mark.parametrize(("rows", "gone_after_s"), [(0, 3), (1, 11)])
def test_a_canary_goes_when_gateways_hold_nothing_or_after_a_while(stand, rows, gone_after_s):
    stand.cluster.rows["m@canary"] = rows
    stand.cluster.abort_rollout("m", "it fails")
    stand.tick(gone_after_s - 1)
    assert stand.running == BESIDE
    stand.tick()
    assert stand.running == ALONE


def test_a_version_that_does_not_run_in_the_live_ones_place_is_taken_back(stand):
    stand.cluster.broken.add(("m", 2))
    stand.commands.promote({"model": "m"})
    stand.tick(2)
    assert stand.running == BESIDE
    ((_, how, why),) = stand.told
    assert (how, why) == ("aborted", "it does not run in the live version's place: no such file")
    stand.tick(4)
    assert stand.running == ALONE


def test_one_that_never_gets_ready_in_the_live_ones_place_is_taken_back(stand):
    stand.cluster.starting.add("m")
    stand.commands.promote({"model": "m"})
    limit_s = stand.live.settings.models["m"].replicas.start_timeout_s
    stand.tick()
    stand.cluster.now += limit_s
    stand.tick()
    assert stand.running == BESIDE
    assert f"not ready after {limit_s:g} s" in stand.record("m")["why"]


def test_a_version_that_is_never_announced_is_aborted(stand):
    stand.cluster.now += stand.live.settings.models["m"].replicas.start_timeout_s
    stand.tick(2)
    assert "was not ready within" in stand.record("m")["why"]
    assert stand.record("m")["over"]


def test_a_registry_that_starts_anew_is_told_of_the_rollout_again(stand):
    stand.cluster.restart_registry()
    stand.tick()
    assert [a["phase"] for a in stand.cluster.rollouts()] == ["checking"]
    stand.cluster.abort_rollout("m", "it fails")
    stand.tick(5)
    assert stand.running == ALONE


def test_a_registry_that_starts_anew_late_has_its_whole_time_to_hear_of_the_canary(stand):
    limit_s = stand.live.settings.models["m"].replicas.start_timeout_s
    stand.cluster.now += 2 * limit_s
    stand.cluster.restart_registry()
    stand.tick(int(limit_s))
    assert (stand.record("m")["phase"], stand.told) == ("checking", [])
    stand.tick(3)
    assert "was not ready within" in stand.record("m")["why"]


def test_a_canary_that_took_long_to_start_has_its_whole_time_to_be_announced(tmp_path):
    slow = Stand(tmp_path, OLD)
    settle, limit_s = slow.cluster.settle, slow.live.settings.models["m"].replicas.start_timeout_s

    def settle_late(*args):
        slow.cluster.now += limit_s
        return settle(*args)

    slow.cluster.settle = settle_late
    slow.apply(NEW)
    slow.tick(5)
    assert (slow.record("m")["phase"], slow.told) == ("checking", [])


def test_one_that_starts_anew_goes_on_with_what_is_put_in_place(stand):
    stand.cluster.starting.add("m")
    stand.commands.promote({"model": "m"})
    stand.tick()
    stand.cluster.restart_registry()
    stand.tick()
    assert [a["phase"] for a in stand.cluster.rollouts()] == ["promoting"]
    stand.cluster.starting.clear()
    stand.tick(5)
    assert stand.running == {"m": 2, "n": 1}


def test_what_was_asked_by_hand_is_told_to_a_registry_that_starts_anew(stand):
    stand.commands.promote({"model": "m"})
    stand.cluster.restart_registry()
    stand.tick(6)
    assert stand.running == {"m": 2, "n": 1}
    assert stand.told == [("m", "promoted", "")]


@pytest.mark.parametrize("placed", [False, True])
def test_an_abort_is_not_lost_with_the_registry(stand, placed):
    if placed:
        stand.cluster.starting.add("m")
        stand.commands.promote({"model": "m"})
        stand.tick()
        assert stand.running["m"] == 2
    assert stand.commands.abort({"model": "m", "reason": "a bad day"}) == {"model": "m"}
    stand.cluster.restart_registry()
    stand.tick(8)
    assert stand.running == ALONE
    assert stand.told == [("m", "aborted", "a bad day")]


@pytest.mark.parametrize(
    ("ask", "ends", "runs"),
    [
        ("promote", ("m", "promoted", ""), {"m": 2, "n": 1}),
        ("abort", ("m", "aborted", "ended by hand"), ALONE),
    ],
)
def test_one_that_has_just_started_anew_is_told_once_it_knows_of_the_rollout(
    stand, ask, ends, runs
):
    stand.cluster.restart_registry()
    assert getattr(stand.commands, ask)({"model": "m"}) == {"model": "m"}
    stand.tick(8)
    assert (stand.told, stand.running) == ([ends], runs)


def test_what_it_has_not_heard_is_told_again(stand, monkeypatch):
    """It began the rollout anew and was silent then."""
    stand.commands.abort({"model": "m", "reason": "a bad day"})
    stand.cluster.restart_registry()
    with monkeypatch.context() as lost:
        lost.setattr(stand.cluster, "abort_rollout", lambda *_: False)
        stand.tick(2)
    assert stand.running == BESIDE
    stand.tick(5)
    assert stand.told == [("m", "aborted", "a bad day")]


def test_what_was_asked_of_one_canary_is_not_asked_of_the_next(stand):
    stand.commands.abort({"model": "m"})
    stand.tick(5)
    stand.apply(NEW)
    stand.tick(5)
    assert (stand.running, stand.record("m")["over"]) == (BESIDE, False)


def test_an_abort_that_a_registry_has_lost_still_stands_against_a_promotion(stand):
    stand.commands.abort({"model": "m"})
    stand.cluster.restart_registry()
    assert "decided already" in stand.commands.promote({"model": "m"})["error"]
    stand.tick(5)
    assert stand.running == ALONE


def test_a_promotion_may_still_be_aborted(stand):
    stand.commands.promote({"model": "m"})
    assert stand.commands.abort({"model": "m"}) == {"model": "m"}
    stand.tick(5)
    assert stand.running == ALONE


def test_a_cluster_that_does_not_answer_changes_nothing_and_is_asked_again(stand):
    stand.cluster.abort_rollout("m", "it fails")
    stand.cluster.silent = True
    with pytest.raises(ClusterError):
        stand.tick()
    assert stand.running == BESIDE
    stand.cluster.silent = False
    stand.tick(5)
    assert stand.running == ALONE


def test_a_canary_that_cannot_be_carried_out_keeps_none_of_the_others(tmp_path, monkeypatch):
    both = Stand(tmp_path, OLD)
    both.apply({"m": model(2), "n": model(2)})
    both.cluster.abort_rollout("n", "it fails")
    both.commands.promote({"model": "m"})
    runs = both.cluster.runs

    def refuses(name):
        if name == "m":
            raise ClusterError("Serve does not answer")
        return runs(name)

    with monkeypatch.context() as broken:
        broken.setattr(both.cluster, "runs", refuses)
        both.tick()
        for _ in range(5):
            with pytest.raises(ClusterError, match="Serve does not answer"):
                both.tick()
    assert both.told == [("n", "aborted", "it fails")]
    assert both.running == {"m": 2, "n": 1, "m@canary": 2}
    both.tick(5)
    assert both.running == {"m": 2, "n": 1}


def test_nothing_is_put_beside_a_file_that_is_being_applied(stand):
    stand.cluster.abort_rollout("m", "it fails")
    with stand.live.lock:
        stand.tick(20)
        assert stand.running == BESIDE
    stand.tick(4)
    assert stand.running == ALONE


def test_a_rollout_is_seen_to_go_on_while_a_file_is_being_applied(stand):
    with stand.live.lock:
        stand.tick()
        held_s = stand.record("m")["held_s"]
        stand.tick(20)
        assert stand.record("m")["held_s"] == held_s + 20


@pytest.mark.parametrize("ask", ["promote", "abort"])
def test_what_cannot_be_decided_is_said(stand, ask):
    decide = getattr(stand.commands, ask)
    assert decide({"model": "x"})["error"] == "no model 'x'; there are: m, n"
    assert decide({"model": "n"})["error"] == "no rollout of n is under way; under way: m"
    stand.commands.abort({"model": "m", "reason": "a bad day"})
    assert "decided already" in decide({"model": "m"})["error"]
    stand.tick()
    assert decide({"model": "m"})["error"] == "the last rollout of m is over: aborted (a bad day)"
