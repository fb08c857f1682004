"""`rollout`: what is refused, and where."""

from __future__ import annotations

from typing import Any

import pytest

from deployments.settings.plain import SettingsErrors, parse


def refusal(rollout: dict[str, Any], **model: Any) -> str:
    with pytest.raises(SettingsErrors) as wrong:
        parse({"models": {"m": {"runtime": "synthetic", "rollout": rollout, **model}}})
    return str(wrong.value)


def test_an_empty_section_is_a_rollout_by_defaults():
    rollout = parse({"models": {"m": {"runtime": "synthetic", "rollout": {}}}}).models["m"].rollout
    assert rollout is not None
    assert (rollout.steps_percent, rollout.hold_s, rollout.min_requests) == ((5, 25, 50), 60, 100)


@pytest.mark.parametrize("steps", [[], [5, 5], [50, 5], [0, 5], [5, 101]])
def test_steps_ascend_between_0_and_100(steps):
    assert "steps_percent" in refusal({"steps_percent": steps})


def test_agreement_needs_copies():
    assert "rollout.shadow_percent" in refusal({"agreement": {"cosine": 0.99}})


def test_prompts_are_not_copied():
    assert "are sampled" in refusal({"shadow_percent": 5}, task="generate")
