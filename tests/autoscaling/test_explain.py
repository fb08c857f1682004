"""What `headrace check` says that a policy will do."""

from pathlib import Path

import pytest
import yaml

from autoscaling.sentences import explain
from autoscaling.settings import GroupTerms, Mode, ModelTerms, Needs, PolicySettings

POLICIES = sorted((Path(__file__).parents[2] / "autoscaling" / "policies").glob("*.yaml"))


def said(*groups, **policy):
    terms = ModelTerms("m", 0.1, groups, policy=PolicySettings(**policy), in_pool=True)
    return " ".join(explain(terms))


def policy_of(path):
    fields = yaml.safe_load(path.read_text())
    if "mode" in fields:
        fields["mode"] = Mode(fields["mode"])
    if "windows_s" in fields:
        fields["windows_s"] = tuple(float(each) for each in fields["windows_s"])
    return PolicySettings(**fields)


def test_bounds_and_cost_are_said():
    text = said(GroupTerms("", 1, 8, needs=Needs((), 2.5)))
    assert "1 to 8 replicas" in text
    assert "costs 2.5 to 20 an hour" in text


def test_fixed_number_is_said_and_nothing_else_is():
    text = said(GroupTerms("", 3, 3))
    assert "3 replicas. The number is fixed" in text
    assert "burst" not in text
    assert "has 1 replica." in said(GroupTerms("", 1, 9), mode=Mode.OFF)


def test_sleep_is_said_where_every_minimum_is_zero():
    assert "After 2 min without a request" in said(GroupTerms("", 0, 2), idle_s=120.0)
    assert "without a request" not in said(GroupTerms("", 1, 2))


@pytest.mark.parametrize("path", POLICIES, ids=lambda path: path.stem)
def test_policy_that_ships_holds_only_fields_of_a_policy_and_says_when_to_choose_it(path):
    text = path.read_text()
    assert text.startswith("# ")
    terms = ModelTerms("m", 0.1, (GroupTerms("", 0, 4),), policy=policy_of(path))
    assert len(explain(terms)) >= 1


def test_six_policies_ship_and_differ():
    names = {path.stem for path in POLICIES}
    assert names == {
        "latency-first",
        "cost-first",
        "bursty",
        "diurnal",
        "scale-to-zero",
        "fixed",
    }
    assert len({policy_of(path) for path in POLICIES}) == 6
