"""A model's canary as a model of its own."""

from __future__ import annotations

from typing import Any

import pytest

from deployments.contract.model_arguments import digests, model_arguments
from deployments.control.plan import canary_settings, rollout_terms
from deployments.settings.channel import ChannelSettings
from deployments.settings.model import ModelSettings
from deployments.settings.plain import parse
from deployments.settings.rollout import RolloutSettings


def model(**fields: Any) -> ModelSettings:
    other = {"runtime": "synthetic"}
    written = {"models": {"m": {"runtime": "synthetic", "rollout": {}, **fields}, "other": other}}
    return parse(written).models["m"]


@pytest.mark.parametrize(
    ("replicas", "rollout", "numbers"),
    [
        ({}, {}, (1, 1)),
        ({"count": 8}, {}, (4, 4)),
        ({"count": 8}, {"steps_percent": [1, 10]}, (1, 1)),
        ({"count": 8}, {"steps_percent": [1], "shadow_percent": 75}, (6, 6)),
        ({"min": 6, "max": 20}, {}, (3, 10)),
        ({"min": 0, "max": 20}, {}, (1, 10)),
        ({"count": 8}, {"replicas": 2}, (2, 2)),
        ({"min": 6, "max": 20}, {"replicas": 2}, (2, 2)),
    ],
)
def test_it_has_as_many_replicas_as_its_largest_share_asks_for(replicas, rollout, numbers):
    canary = canary_settings(model(replicas=replicas, rollout=rollout))
    assert (canary.replicas.least, canary.replicas.most) == numbers


def test_what_belongs_to_the_models_name_is_not_its_own():
    canary = canary_settings(model(optional=True, aliases=["org/m"]))
    assert canary.aliases == ()
    assert (canary.optional, canary.rollout) == (False, None)


def test_it_is_scaled_as_the_live_version_is():
    scaled = model(replicas={"min": 2, "max": 8}, scaling={"mode": "observe"})
    assert canary_settings(scaled).scaling == scaled.scaling
    assert canary_settings(scaled.model_copy(update={"rollout": RolloutSettings(replicas=3)}))


def test_its_replicas_have_the_settings_that_the_promoted_ones_will_have():
    """So that what they measure is known by their digest."""
    new = model(replicas={"count": 4, "slots": 3}, lengths={"max": 64}, fallback="other")
    ours = digests(model_arguments("m", new, {}, ChannelSettings()))
    canarys = digests(model_arguments("m@canary", canary_settings(new), {}, ChannelSettings()))
    assert ours == canarys


def test_of_several_groups_it_runs_the_first():
    groups = [{"name": "quick", "options": {"base_ms": 1}}, {"name": "slow"}]
    canary = canary_settings(model(replicas={"groups": groups}))
    assert canary.options == {"base_ms": 1}
    assert canary.replicas.groups == ()


def test_terms_are_the_settings_in_shares():
    given = {
        "steps_percent": [10, 50], "hold_s": 5, "min_requests": 7, "shadow_percent": 20,
        "max_errors_percent": 2, "max_latency_ratio": 2,
        "agreement": {"cosine": 0.9},
    }  # fmt: skip
    rollout = model(rollout=given).rollout
    assert rollout is not None
    terms = rollout_terms(rollout)
    assert (terms.shares, terms.shadow, terms.max_errors) == ((0.0, 0.1, 0.5), 0.2, 0.02)
    assert (terms.hold_s, terms.least_requests) == (5, 7)
    assert (terms.max_latency_ratio, terms.max_cost_ratio) == (2, 2)
    assert (terms.agreement.cosine, terms.agreement.least, terms.agreement.top1) == (
        0.9,
        0.99,
        False,
    )


def test_without_copies_requests_come_first():
    rollout = model().rollout
    assert rollout is not None
    assert rollout_terms(rollout).shares == (0.05, 0.25, 0.5)
