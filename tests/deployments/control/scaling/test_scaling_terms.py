"""A settings file in the autoscaler's words."""

from __future__ import annotations

from typing import Any

from autoscaling.settings import Budget, Mode, Needs, PolicySettings, PoolTerms
from deployments.control.scaling.scaling_terms import policy_settings, scaling_document
from deployments.settings.plain import parse, settings_digest
from deployments.settings.tree import Settings

MIB = 1 << 20


def settings(model: dict[str, Any], **sections: Any) -> Settings:
    return parse({"models": {"m": {"runtime": "synthetic", **model}}, **sections})


def terms(model: dict[str, Any], **sections: Any) -> Any:
    return scaling_document(settings(model, **sections)).settings.models["m"]


def test_a_fixed_number_is_both_bounds():
    (group,) = terms({"replicas": {"count": 3}}).groups
    assert (group.name, group.min, group.max, group.reserve) == ("", 3, 3, False)


def test_what_nobody_says_is_the_cores_default():
    assert policy_settings(settings({}).models["m"]) == PolicySettings()


def test_bounds_needs_and_promises_are_translated():
    said = terms({
        "slo": {"latency_ms": 250, "percentile": 99.5},
        "replicas": {"min": 0, "max": 4, "priority": 2, "num_cpus": 2, "num_gpus": 1,
                     "memory_mib": 512, "resources": {"mig": 1}, "cost_per_hour": 1.5},
    })  # fmt: skip
    assert (said.slo_s, said.percentile, said.priority) == (0.25, 0.995, 2)
    (group,) = said.groups
    assert (group.min, group.max) == (0, 4)
    assert group.needs == Needs(
        (("CPU", 2.0), ("GPU", 1.0), ("memory", 512.0 * MIB), ("mig", 1.0)), 1.5
    )
    assert said.may_sleep


def test_of_a_model_that_generates_the_first_token_is_promised():
    assert terms({"task": "generate", "slo": {"ttft_ms": 400}}).slo_s == 0.4


def test_groups_say_their_own_numbers_and_take_the_rest():
    said = terms({"replicas": {
        "max": 3, "cost_per_hour": 4,
        "groups": [{"name": "gpu", "num_gpus": 1},
                   {"name": "cpu", "count": 2, "cost_per_hour": 1, "overflow": {"after_ms": 50}},
                   {"name": "wide", "min": 0, "max": 9}],
    }})  # fmt: skip
    assert [(g.name, g.min, g.max, g.reserve, g.needs.cost_per_hour) for g in said.groups] == [
        ("gpu", 1, 3, False, 4.0), ("cpu", 2, 2, True, 1.0), ("wide", 0, 9, False, 4.0),
    ]  # fmt: skip
    assert not said.may_sleep


def test_a_policy_is_taken_with_what_stands_beside_it_and_with_the_replicas():
    model = {"scaling": {"policy": "latency-first", "knee": 0.5, "mode": False},
             "replicas": {"max": 2, "survive": 0}}  # fmt: skip
    policy = terms(model).policy
    assert (policy.mode, policy.knee, policy.survive, policy.spare) == (Mode.OFF, 0.5, 0, 1)
    assert policy.windows_s == PolicySettings().windows_s


def test_the_budget_bounds_only_what_it_names():
    budget = {"gpus": 8, "memory_mib": 2, "resources": {"mig": 3}, "cost_per_hour": 20}
    said = scaling_document(settings({}, scaling={"budget": budget})).settings
    assert said.budget == Budget((("GPU", 8.0), ("memory", 2.0 * MIB), ("mig", 3.0)), 20.0)
    assert scaling_document(settings({})).settings.budget == Budget()


def test_nothing_is_pooled_without_a_pool():
    sent = scaling_document(settings({}))
    assert (sent.settings.pool, sent.pool_models) == (None, ())
    assert not sent.settings.models["m"].in_pool


TWO = {
    "models": {
        "a": {"runtime": "synthetic", "replicas": {"slots": 3, "max": 2, "start_timeout_s": 900}},
        "llm": {"runtime": "vllm", "source": "models/llm", "task": "generate"},
    },
    "scaling": {"pool": {"min": 1, "max": 3, "memory_mib": 10, "num_gpus": 1}},
}


def test_the_pool_holds_what_it_can():
    sent = scaling_document(parse(TWO))
    assert sent.settings.pool == PoolTerms(
        1, 3, 10 * MIB, needs=Needs((("CPU", 0.5), ("GPU", 1.0)), 0.0)
    )
    (model,) = sent.pool_models
    own = {"runtime": "synthetic", "replicas": {"slots": 3}}
    assert model.args == {
        "name": "a", "settings": own, "channel": {}, "group": "pool", "start_timeout_s": 900,
    }  # fmt: skip
    assert model.key == settings_digest(own) == sent.settings.models["a"].pool_key
    assert sent.settings.models["a"].in_pool
    assert not sent.settings.models["llm"].in_pool


def test_engines_that_say_what_they_take_are_in_the_pool():
    options = {"kv_cache_gib": 0.005, "gpu_memory_utilization": 0.3}
    llm = {**TWO["models"]["llm"], "options": options}
    chat = {"runtime": "torch", "source": "models/small", "task": "generate"}
    models = {"llm": llm, "chat": chat}
    sent = scaling_document(parse({**TWO, "models": models}))
    assert [each.name for each in sent.pool_models] == ["llm", "chat"]
    on_cpus = scaling_document(parse({"models": models, "scaling": {"pool": {}}}))
    assert [each.name for each in on_cpus.pool_models] == ["chat"]


def test_a_pool_may_name_its_models():
    named = {**TWO, "scaling": {"pool": {"models": []}}}
    assert scaling_document(parse(named)).pool_models == ()


def test_numbers_and_policies_are_no_part_of_what_the_pool_runs():
    other = {**TWO, "models": {**TWO["models"], "a": {
        "runtime": "synthetic", "scaling": {"knee": 0.4},
        "replicas": {"slots": 3, "max": 9, "start_timeout_s": 900},
    }}}  # fmt: skip
    assert scaling_document(parse(other)).pool_models == scaling_document(parse(TWO)).pool_models
