"""What the engine's options may be, told without vLLM: names, arguments, files."""

from __future__ import annotations

import datetime
import json
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from runtimes import catalog
from runtimes.errors import LoadError
from runtimes.types import RuntimeSettings
from runtimes.vllm import engine_args, inspection, names
from runtimes.vllm.runtime import VLLMOptions, arguments


def given(**options: Any) -> list[str]:
    settings = RuntimeSettings(name="m", runtime="vllm", source=Path("/m"), cache_dir=Path("/none"))
    return arguments(settings, VLLMOptions(**options))


def refusal(**options: Any) -> str:
    with pytest.raises(LoadError) as caught:
        catalog.check("vllm", options, "fp32", "generate")
    return str(caught.value)


# ---- names --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("option", "wrong", "right"),
    [
        ("tool_call_parser", "hermess", "'hermes'"),
        ("reasoning_parser", "deepseek_r", "deepseek_r1"),
        ("quantization", "gptqq", "'gptq'"), ("kv_cache_dtype", "fp8_e4", "'fp8_e4m3'"),
    ],
)  # fmt: skip
def test_a_name_that_the_engine_has_not_is_refused_with_those_it_has(
    option: str, wrong: str, right: str
) -> None:
    assert right in refusal(**{option: wrong})
    assert "known: " in refusal(**{option: "nothing like it"})
    catalog.check("vllm", {option: right.strip("'")}, "fp32", "generate")


def test_without_the_engine_the_recorded_names_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(names.importlib.util, "find_spec", lambda name: None)
    names.known.cache_clear()
    try:
        assert "hermes" in names.known(names.TOOL_PARSERS)
        assert {len(names.known(where)) for where in names.RECORDED} == {54, 38, 30, 19}
    finally:
        names.known.cache_clear()


# ---- engine_args --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("port", "no server of its own"), ("api_key", "no server of its own"),
        ("served_model_name", "set by the model's name"), ("model", "`source`"),
        ("trust_remote_code", "code to run"), ("max_num_seqs", "an option of its own"),
        ("enable_lora", "adapters are settings"), ("kv_events_config", "blocks go"),
        ("allowed_media_domains", "gateways fetch"), ("distributed_executor_backend", "Ray"),
        ("disable_log_stats", "metrics"), ("max_logprobs", "bounded by Headrace"),
        ("structured_outputs_config", "xgrammar"), ("ubatch_size", "nobody has tried"),
        ("speculative_config", "option `speculative`"),
    ],
)  # fmt: skip
def test_what_headrace_owns_is_refused_with_the_reason(name: str, reason: str) -> None:
    said = refusal(engine_args={name: 1})
    assert said.startswith(f"option 'engine_args' may not have '{name}': ")
    assert reason in said


def test_an_unknown_argument_and_a_wrong_value_are_named() -> None:
    assert "did you mean 'cpu_offload_gb'" in refusal(engine_args={"cpu-offload-gb": 1})
    assert "no such argument" in refusal(engine_args={"zzz": 1})
    assert "engine_args.cpu_offload_gb' is 'x', it takes a number" in refusal(
        engine_args={"cpu_offload_gb": "x"}
    )
    assert "it takes true or false" in refusal(engine_args={"async_scheduling": 1})
    hidden = {"text_config": {"auto_map": {"AutoModel": "a.B"}}}
    assert "auto_map" in refusal(engine_args={"hf_overrides": hidden})


def test_a_lists_entry_is_no_further_argument() -> None:
    wrong = {"kv_cache_dtype_skip_layers": ["--trust-remote-code"]}
    assert "'--trust-remote-code'" in refusal(engine_args=wrong)


def test_arguments_are_written_as_on_the_command_line() -> None:
    made = given(
        engine_args={
            "async_scheduling": False, "enable_chunked_prefill": True, "cpu_offload_gb": 1.5,
            "hf_overrides": {"a": [1]}, "cudagraph_capture_sizes": (1, 2), "model_impl": "--x",
        }
    )  # fmt: skip
    for each in (
        "--no-async-scheduling", "--enable-chunked-prefill", "--cpu-offload-gb=1.5",
        '--hf-overrides={"a": [1]}', "--model-impl=--x",
    ):  # fmt: skip
        assert each in made
    at = made.index("--cudagraph-capture-sizes")
    assert made[at + 1 : at + 3] == ["1", "2"]


def test_an_engine_is_started_for_sleep_where_it_is_to_leave_its_gpu() -> None:
    settings = RuntimeSettings(
        name="m", runtime="vllm", source=Path("/m"), cache_dir=Path("/none"), sleeps=True
    )
    assert "--enable-sleep-mode" in arguments(settings, VLLMOptions())
    assert "--enable-sleep-mode" not in given()


def test_no_argument_is_in_two_classes() -> None:
    every = " ".join([*engine_args._OWNED.values(), *engine_args._MAY_BE_SET.values()]).split()
    assert len(every) == len(set(every))


# ---- speculative --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"method": "ngram"}, "option 'tokens' is missing"),
        ({"method": "guess", "tokens": 3}, "it takes one of ngram"),
        ({"method": "ngram", "tokens": 0}, "must be 1 to 32"),
        ({"method": "ngram", "tokens": 33}, "must be 1 to 32"),
        ({"method": "ngram", "tokens": 3, "model": "/d"}, "has no option 'model'"),
        ({"method": "draft_model", "tokens": 3}, "needs option 'model'"),
        ({"method": "eagle", "tokens": 3, "model": "/d", "prompt_lookup_max": 2}, "are for ngram"),
        ({"method": "ngram", "tokens": 3, "prompt_lookup_min": 5, "prompt_lookup_max": 2}, "above"),
        ({"method": "ngram", "tokens": 3, "off_above": 0}, "must be 1 or more"),
        ({"method": "ngram", "tokens": 3, "off_above": "auto"}, "it takes"),
        ({"method": "ngram", "tokens": 3, "of_above": 4}, "did you mean 'off_above'"),
    ],
)
def test_a_mistake_in_speculative_is_named(wrong: dict[str, Any], said: str) -> None:
    refused = refusal(speculative=wrong)
    assert refused.startswith("option 'speculative': ")
    assert said in refused


def speculation(**chosen: Any) -> dict[str, Any]:
    (made,) = [each for each in given(speculative=chosen) if each.startswith("--spec")]
    found: dict[str, Any] = json.loads(made.removeprefix("--speculative-config="))
    return found


def test_speculation_is_written_as_the_engine_reads_it() -> None:
    assert speculation(method="ngram", tokens=3) == {
        "method": "ngram", "num_speculative_tokens": 3,
        "prompt_lookup_min": 2, "prompt_lookup_max": 4,
    }  # fmt: skip
    assert speculation(method="ngram", tokens=3, prompt_lookup_max=1)["prompt_lookup_min"] == 1
    assert speculation(method="ngram", tokens=3, prompt_lookup_min=6)["prompt_lookup_max"] == 6
    drafted = speculation(method="draft_model", tokens=2, model="/d", off_above=8)
    assert drafted["model"] == "/d"
    low, high = drafted["num_speculative_tokens_per_batch_size"]
    assert (low, high[0], high[2]) == ([1, 8, 2], 9, 0)
    (whole,) = speculation(method="ngram", tokens=3, off_above="measured")[
        "num_speculative_tokens_per_batch_size"
    ]
    assert (whole[0], whole[2]) == (1, 3)
    assert not [each for each in given() if "speculative" in each]


# ---- files --------------------------------------------------------------------------------------


def test_a_template_is_read_as_transformers_reads_it(tmp_path: Path) -> None:
    file = tmp_path / "chat.jinja"
    file.write_text(
        "{% for m in messages %}{% if loop.last %}{% break %}{% endif %}{% generation %}"
        "{{ m.content | tojson }}{{ strftime_now('%Y') }}{% endgeneration %}{% endfor %}"
    )
    inspection.check_template(str(file))


@pytest.mark.parametrize(
    "text", ["{{ 'a' * 10000000 }}", "{% set x = 'a' * 10000000 %}", "{{ 'a' | center(10000000) }}"]
)
def test_looking_at_a_template_works_nothing_out(tmp_path: Path, text: str) -> None:
    file = tmp_path / "chat.jinja"
    file.write_text("a")
    inspection.check_template(str(file))  # what is imported is not counted
    file.write_text(text)
    tracemalloc.start()
    inspection.check_template(str(file))
    taken = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert taken < 5_000_000


def test_a_mapping_of_arguments_can_be_written_as_json() -> None:
    said = refusal(engine_args={"hf_overrides": {"made": datetime.date(2026, 1, 1)}})
    assert said.startswith("option 'engine_args.hf_overrides' cannot be written as JSON")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"a\n{% for x in y %}", r"no Jinja template, line 2: "),
        (b"{{ x | nofilter }}", r"no Jinja template, line 1: No filter named 'nofilter'"),
        (b"\xff", "is not UTF-8"),
        (b"x" * ((1 << 20) + 1), "is larger than"),
        (b"{{" + b"(" * 100_000, "no Jinja template"),
    ],
)
def test_a_file_that_is_no_template_is_refused(tmp_path: Path, text: bytes, said: str) -> None:
    file = tmp_path / "chat.jinja"
    file.write_bytes(text)
    with pytest.raises(LoadError, match=said):
        inspection.check_template(str(file))


@pytest.mark.parametrize(
    ("config", "chosen", "said"),
    [
        ({"quantization_config": {"quant_method": "awq"}}, "gptq", "says awq; must be awq or"),
        ({"quantization_config": {"quant_method": "GPTQ"}}, "fp8", "says gptq"),
        (
            {"compression_config": {"quant_method": "compressed_tensors"}},
            "awq",
            "compressed-tensors",
        ),
        ({"quantization_config": {"quant_method": "bitsandbytes"}}, None, "vLLM does not run"),
        ({}, "awq", "weights are not quantised"),
        ({"quantization_config": {"quant_method": "awq"}}, "awq_marlin", ""),
        ({"quantization_config": {"quant_method": "awq"}}, None, ""),
        ({"quantization_config": {"quant_method": "of-tomorrow"}}, "fp8", ""),
        ({"quantization_config": {}}, "modelopt", ""),
        ({}, "fp8", ""),
        ({}, None, ""),
    ],
)
def test_quantised_weights_and_the_option_must_fit(
    tmp_path: Path, config: dict[str, Any], chosen: str | None, said: str
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    if not said:
        inspection.check_quantisation(str(tmp_path), chosen)
        return
    with pytest.raises(LoadError, match=said):
        inspection.check_quantisation(str(tmp_path), chosen)
