"""What a loaded model says of itself, and what its runtime is told."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest
from fake_runtimes import Encoder, Moody, Shout

from deployments.contract.description import Generating
from deployments.replica import describe
from deployments.replica.known_costs import KnownCosts
from deployments.settings.model import ModelSettings
from deployments.settings_files import preprocessing_support
from runtimes import fingerprint
from runtimes.errors import LoadError
from runtimes.types import Limits, StreamLimits, TensorSpec


def model(**fields: Any) -> ModelSettings:
    return ModelSettings.model_validate({"runtime": "synthetic", **fields})


def test_the_runtime_is_told_what_the_settings_say(tmp_path: Path) -> None:
    told: list[tuple[str, float]] = []
    settings = model(
        lengths={"max": 64, "buckets": [8, 64]},
        batch={"max_size": 4, "max_tokens": 256},
        replicas={"threads": 3},
        options={"base_ms": 1},
    )
    found = describe.runtime_settings("m", settings, tmp_path, lambda *p: told.append(p))
    assert (found.edges, found.max_size, found.max_tokens) == ((8, 64), 4, 256)
    assert (found.threads, found.options, found.source) == (3, {"base_ms": 1}, None)
    found.progress("warming", 0.5)
    assert told == [("warming", 0.5)]


@pytest.mark.parametrize(("cpus", "count", "threads"), [(8, 2, 4), (8, 3, 2), (1, 2, 1)])
def test_replicas_share_the_processors(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, cpus: int, count: int, threads: int
) -> None:
    monkeypatch.setattr("deployments.replica.backend_env.allowed_cpus", lambda: cpus)
    settings = model(replicas={"count": count})
    found = describe.runtime_settings("m", settings, tmp_path, lambda *_: None)
    assert found.threads == threads


def test_the_description_joins_settings_and_limits() -> None:
    settings = model(
        slo={"latency_ms": 50, "late": "refuse"}, queue={"max_rows": 9}, retry=False, version="1.2"
    )
    description, tokenizer = describe.describe("m", settings, "digest", Encoder())  # type: ignore[arg-type]
    assert (description.name, description.version, description.digest, description.generation) == (
        "m",
        "1.2",
        "digest",
        0,
    )
    assert (description.inputs, description.lengths_input) == (Encoder.LIMITS.inputs, "ids")
    s = description.scheduling
    assert (s.slo_s, s.timeout_s, s.core.late, s.core.max_queue_rows) == (0.05, 0.5, "refuse", 9)
    assert (s.retry, tokenizer, description.tokenizer_digest) == (False, b"", "")


def test_the_description_carries_the_profile() -> None:
    profile = ((1, 16, 0.005),)
    costs = KnownCosts(profile, "stored, yesterday")
    description, _ = describe.describe("m", model(), "d", Encoder(), costs)  # type: ignore[arg-type]
    assert (description.profile, description.profile_from) == (profile, "stored, yesterday")


@pytest.mark.parametrize(("target", "rows"), [(None, 32), (8, 8), (64, 32)])
def test_a_batch_target_is_one_more_bound_on_rows(target: int | None, rows: int) -> None:
    costs = KnownCosts(((1, 16, 0.005),), "stored", None, target)
    description, _ = describe.describe("m", model(), "d", Encoder(), costs)  # type: ignore[arg-type]
    assert (description.scheduling.core.max_size, description.scheduling.core.fixed_size) == (
        rows,
        None,
    )


def test_stored_edges_are_those_to_start_from() -> None:
    costs = KnownCosts(((1, 16, 0.005),), "stored", (40, 512))
    description, _ = describe.describe("m", model(), "d", Encoder(), costs)  # type: ignore[arg-type]
    assert description.bucket_edges == (40, 512)


def test_a_model_without_lengths_has_one_bucket() -> None:
    description, _ = describe.describe("m", model(), "d", Moody(lambda v: None))  # type: ignore[arg-type]
    assert (description.bucket_edges, description.lengths_input) == ((1,), None)


def test_a_backend_compiled_for_some_lengths_sets_the_buckets() -> None:
    runtime = Encoder()
    runtime.LIMITS = Limits(  # type: ignore[misc]
        inputs=Encoder.LIMITS.inputs, outputs=Encoder.LIMITS.outputs, length_input="ids",
        fixed_edges=(32, 128),
    )  # fmt: skip
    description, _ = describe.describe("m", model(lengths={"max": 128}), "d", runtime)  # type: ignore[arg-type]
    assert description.bucket_edges == (32, 128)


def test_the_embedding_is_the_first_output_of_a_fixed_width() -> None:
    description, _ = describe.describe("m", model(task="embed"), "d", Encoder())  # type: ignore[arg-type]
    assert (description.embed_output, description.embed_width) == ("sums", 2)


def test_a_model_without_such_an_output_embeds_nothing() -> None:
    with pytest.raises(LoadError, match="width"):
        describe.describe("m", model(task="embed"), "d", Shout())  # type: ignore[arg-type]


def test_the_version_changes_with_what_shapes_the_answers() -> None:
    def version(**fields: Any) -> str:
        description, _ = describe.describe("m", model(**fields), "d", Encoder())  # type: ignore[arg-type]
        return description.version

    assert version() == version(queue={"max_rows": 3})
    assert version() != version(options={"base_ms": 7})


def test_the_version_depends_on_what_a_calibration_holds_and_not_on_where_it_lies(
    tmp_path: Path,
) -> None:
    def version(calibration: str) -> str:
        settings = model(options={"calibration": calibration})
        description, _ = describe.describe("m", settings, "d", Encoder())  # type: ignore[arg-type]
        return description.version

    for name, content in (("a", b"rows"), ("b", b"rows"), ("c", b"others")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "samples.npz").write_bytes(content)
    versions = [version(str(tmp_path / name)) for name in "abc"]
    assert versions[0] == versions[1] != versions[2]
    assert version(f"file://{tmp_path}/a/samples.npz") == versions[0]
    digest = hashlib.sha256(b"rows").hexdigest()
    assert version(f"s3://bucket/rows.npz#sha256={digest}") == versions[0]


@pytest.mark.parametrize("source", ["folder", "folder/model.onnx"])
def test_the_tokeniser_lies_in_the_models_folder_or_beside_its_file(
    tmp_path: Path, source: str
) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "model.onnx").touch()
    assert describe.tokenizer_bytes(tmp_path / source) == b""
    (tmp_path / "folder" / "tokenizer.json").write_bytes(b"{}")
    assert describe.tokenizer_bytes(tmp_path / source) == b"{}"


def test_a_spec_with_a_free_last_axis_is_no_embedding() -> None:
    runtime = Encoder()
    runtime.LIMITS = Limits(  # type: ignore[misc]
        inputs=Encoder.LIMITS.inputs, outputs=(TensorSpec("o", "FP32", (-1, -1)),)
    )
    with pytest.raises(LoadError):
        describe.describe("m", model(task="embed"), "d", runtime)  # type: ignore[arg-type]


def test_a_model_made_for_another_tokenizer_is_refused_before_it_is_loaded(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    settings = model(runtime="torch", source=str(tmp_path), task="embed")
    fingerprint.write(tmp_path, preprocessing_support.supported_preprocessing(settings, tmp_path))
    describe.runtime_settings("m", settings, tmp_path, lambda *_: None)
    (tmp_path / "tokenizer.json").write_text('{"another": 1}')
    with pytest.raises(LoadError, match="tokenizer is"):
        describe.runtime_settings("m", settings, tmp_path, lambda *_: None)


class Engine:
    """A loaded engine, as far as its description needs it."""

    def limits(self) -> StreamLimits:
        return StreamLimits(256, 4096, 8, 16, device="cpu", platform="headrace_synthetic")


def test_the_description_of_a_model_that_generates_says_what_its_engine_holds(
    tmp_path: Path,
) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "tokenizer.json").write_bytes(b"{}")
    settings = model(
        task="generate", source=str(tmp_path), lengths={"max": 256, "buckets": [64, 256]}
    )
    profile = ((1, 1, 0.002),)
    description, tokenizer = describe.describe_stream("m", settings, "d", Engine(), profile)
    assert description.generating == Generating(256, 4096, 8, 16, profile)
    assert (description.inputs, description.outputs, description.max_length) == ((), (), 256)
    assert description.bucket_edges == (64, 256)
    assert tokenizer == b"{}"
    assert description.tokenizer_digest
    assert description.scheduling.core.generation is not None


def test_the_adapters_of_a_model_are_those_that_its_callers_can_ask_for(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "tokenizer.json").write_bytes(b"{}")
    modules = [f"{name}={tmp_path}" for name in ("m:sql", "m:law:v2", "plain")]
    settings = model(task="generate", source=str(tmp_path), options={"lora_modules": modules})
    description, _ = describe.describe_stream("m", settings, "d", Engine())
    assert description.generating is not None
    assert description.generating.adapters == ("sql", "law:v2", "plain")
