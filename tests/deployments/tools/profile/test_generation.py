"""Are models that generate measured in the ways that were asked for?"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from deployments import cli
from deployments.settings.model import ModelSettings
from deployments.tools.profile.generation import Level, sides, table, verdict
from deployments.tools.profile.lengths import WrongArguments
from runtimes import catalog

NGRAM = {"method": "ngram", "tokens": 4}


def model(**fields: Any) -> ModelSettings:
    told = {"runtime": "vllm", "task": "generate", "source": "/models/llm", **fields}
    return ModelSettings.model_validate(told)


def levels(*rates: tuple[float, ...]) -> list[Level]:
    return [Level(2**at, each, 0.01, 10, 4) for at, each in enumerate(rates)]


@pytest.fixture
def everything_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalog, "available", lambda *_: None)


@pytest.mark.usefixtures("everything_is_installed")
def test_a_model_that_speculates_runs_without_it_too() -> None:
    options = {"speculative": NGRAM, "max_num_seqs": 4}
    found = list(sides((), model(options=options), {}))
    assert [each.name for each in found] == ["vllm", "vllm without speculative"]
    assert [each.changes["options"] for each in found] == [options, {"max_num_seqs": 4}]


@pytest.mark.usefixtures("everything_is_installed")
def test_other_backends_get_the_options_that_they_know() -> None:
    options = {"speculative": NGRAM, "max_num_seqs": 4}
    (torch, vllm) = sides(["torch:bf16", "vllm:fp32"], model(options={"max_num_seqs": 4}), {})
    assert (torch.changes["precision"], vllm.changes["precision"]) == ("bf16", "fp32")
    assert (
        "speculative"
        not in next(iter(sides(["torch"], model(options=options), {}))).changes["options"]
    )
    for wrong in ("onnxruntime", "synthetic", ""):
        with pytest.raises(WrongArguments, match="must be some of openvino, torch, vllm"):
            list(sides([wrong], model(), {}))
    with pytest.raises(WrongArguments, match="no precision 'bf16'"):
        list(sides(["openvino:bf16"], model(), {}))


def test_what_is_not_installed_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalog, "available", lambda *_: "get it")
    skipped: dict[str, str] = {}
    assert not list(sides(["torch"], model(), skipped))
    assert skipped == {"torch": "get it"}


def test_passes_that_overlap_decide_nothing() -> None:
    found = {"a": levels((200.0, 220.0), (400.0, 500.0)), "b": levels((100.0, 110.0), (450.0,))}
    assert list(verdict(found)) == [
        "1 at once: a is 2.00 times as fast as b.", "2 at once: passes of a and b overlap.",
    ]  # fmt: skip
    assert [row[5] for row in table("m", found).rows] == ["40%"] * 4


def profiled(tmp_path: Path, *arguments: str, **fields: Any) -> Any:
    told = {"runtime": "synthetic", "task": "generate", "lengths": {"max": 512}, **fields}
    file = tmp_path / "own.yaml"
    file.write_text(yaml.safe_dump({"models": {"llm": told}}))
    return CliRunner().invoke(cli.main, ["profile", str(file), *arguments])


def test_an_engine_is_measured_in_a_process_of_its_own(tmp_path: Path) -> None:
    done = profiled(tmp_path, "--seconds", "3", "--json", options={"max_sequences": 4})
    assert done.exit_code == 0, done.output
    (found,) = json.loads(done.stdout)["sides"].values()
    assert [each["count"] for each in found] == [1, 2, 4]
    rates = [each["tokens_per_s"] for each in found]
    assert rates == sorted(rates)
    assert all(0 < each["first_s"] < 5 and len(each["rates"]) > 1 for each in found)


def test_of_a_slow_engine_fewer_answers_at_once_are_measured(tmp_path: Path) -> None:
    """Rather than none, because the time is up."""
    done = profiled(tmp_path, "--seconds", "1", "--json", options={"base_ms": 10.0})
    assert done.exit_code == 0, done.output
    (found,) = json.loads(done.stdout)["sides"].values()
    assert [each["count"] for each in found] == [1]


def test_lengths_are_for_models_whose_batches_are_formed(tmp_path: Path) -> None:
    lengths = tmp_path / "lengths.csv"
    lengths.write_text("5\n")
    done = profiled(tmp_path, "--lengths", str(lengths))
    assert done.exit_code == 2
    assert "--lengths is for models whose batches are formed" in done.output


def test_a_context_without_room_is_said(tmp_path: Path) -> None:
    done = profiled(tmp_path, "--seconds", "1", lengths={"max": 32})
    assert done.exit_code == 1
    assert "do not fit lengths.max" in done.output
