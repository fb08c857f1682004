"""A model that generates has its own promises, and none of what is said of batches and tensors."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from deployments.replica.scheduling import scheduling
from deployments.settings.model import ModelSettings

STREAM: dict[str, Any] = {"runtime": "synthetic", "task": "generate"}


def model(**more: Any) -> ModelSettings:
    return ModelSettings.model_validate(STREAM | more)


def test_deadline_of_a_generation_is_its_first_tokens() -> None:
    plan = scheduling(model(slo={"ttft_ms": 300, "tpot_ms": 40}))
    assert (plan.slo_s, plan.timeout_s) == (0.3, 600)
    assert plan.core.generation is not None
    assert plan.core.generation.tpot_s == pytest.approx(0.04)


def test_generation_without_promises_has_a_second_to_its_first_token_and_ten_minutes() -> None:
    assert (model().deadline_s, model().timeout_s) == (1.0, 600)


def test_what_is_written_of_generating_reaches_the_core() -> None:
    plan = scheduling(
        model(
            lengths={"max": 8192},
            generation={
                "max_output_tokens": 100,
                "prompts": {"max_long_tokens": None},
                "affinity": {"mode": False},
            },
        )
    )
    core = plan.core.generation
    assert core is not None
    assert (core.affinity, core.max_long_tokens) == ("off", float("inf"))
    assert plan.max_output_tokens == 100
    assert not plan.core.buckets.adaptive


def test_models_of_batches_are_told_nothing_of_generating() -> None:
    plan = scheduling(ModelSettings.model_validate({"runtime": "synthetic"}))
    assert plan.core.generation is None


@pytest.mark.parametrize(
    ("written", "message"),
    [
        (STREAM | {"batch": {"max_size": 4}}, "the engine batches by itself"),
        (STREAM | {"policies": {"edges": "padding"}}, "an engine batches by itself, unpadded"),
        (
            {
                "runtime": "synthetic",
                "lengths": {"max": 64, "buckets": [16, 64]},
                "policies": {"edges": "padding"},
            },
            "lengths.buckets lists fixed edges",
        ),
        (STREAM | {"slo": {"latency_ms": 50}}, "task generate has ttft_ms and tpot_ms"),
        (STREAM | {"slo": {"timeout_ms": 900}}, "is 900, shorter than ttft_ms"),
        (STREAM | {"slo": {"max_timeout_ms": 900}}, r"names none \(timeout_ms, 600000\)"),
        (STREAM | {"hedge": {"mode": "tied"}}, "no batch is staged at an engine"),
        (STREAM | {"adapters_resident": 4}, "the model has no adapters"),
        (STREAM | {"adapters": {"a:b": "x"}}, "no name of an adapter"),
        (STREAM | {"adapters": {"a": ""}}, "at least 1 character"),
        (STREAM | {"adapters": {"a": "x"}, "adapters_resident": 0}, "greater than or equal to 1"),
        (
            STREAM | {"options": {"lora_modules": ["a=x"]}},
            r"must be the model.s own adapters: \{NAME: FOLDER\}",
        ),
        (
            {"runtime": "synthetic", "adapters": {"a": "x"}},
            "task tensors has none, only generate has",
        ),
        (
            STREAM | {"queue": {"preempt_streams": True}, "policies": {"preemption": "none"}},
            "must be left out with policies.preemption none",
        ),
        (STREAM | {"replicas": {"slots": 3}}, "how many requests a replica holds"),
        (STREAM | {"cache": {"max_bytes": 1000}}, "answers that stream are not cached"),
        (STREAM | {"coalesce": True}, "answers that stream are not shared"),
        (STREAM | {"lengths": {"truncate": True}}, "a prompt has no tensors"),
        ({"runtime": "vllm", "source": "m"}, "must be generate, the only task of vllm"),
        ({"runtime": "onnxruntime", "source": "m", "task": "generate"}, "which cannot generate"),
        ({"runtime": "synthetic", "slo": {"ttft_ms": 5}}, "only task generate has tokens"),
        (
            {"runtime": "synthetic", "queue": {"preempt_streams": True}},
            "run batches, which are not",
        ),
        ({"runtime": "synthetic", "hedge": {"mode": "tied"}, "retry": False}, "no row runs twice"),
        ({"runtime": "synthetic", "lengths": {"input": "ids"}}, "has fixed inputs"),
        (
            {"runtime": "vllm", "source": "m", "task": "generate", "image": {"size": 8}},
            "takes prompts, not images",
        ),
        ({"runtime": "synthetic", "generation": {"max_output_tokens": 3}}, "generates nothing"),
    ],
)
def test_settings_that_would_do_nothing_are_refused(written: Any, message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        ModelSettings.model_validate(written)


def test_stream_settings_stand_where_replicas_stream() -> None:
    assert model(queue={"preempt_streams": True}).queue.preempt_streams


def test_defaults_written_out_are_no_mistake() -> None:
    assert ModelSettings.model_validate(model().model_dump()) == model()


def test_of_a_model_that_generates_lengths_may_be_recorded_and_prompts_not() -> None:
    assert model(record={"folder": "recorded", "max_requests": 5}).record.max_requests == 5
    with pytest.raises(ValidationError, match="only the lengths of prompts are recorded"):
        model(record={"folder": "recorded", "max_rows": 1})
