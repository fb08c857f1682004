"""Fallbacks lead to another model of the same task, and never back."""

from __future__ import annotations

from pathlib import Path

import pytest

from deployments.settings.plain import SettingsErrors
from deployments.settings_files.load import load


def file_of(folder: Path, models: dict[str, str], more: str = "") -> Path:
    lines = [f"  {name}: {{runtime: synthetic, {rest}}}" for name, rest in models.items()]
    path = folder / "some.yaml"
    path.write_text("\n".join(["models:", *lines, more]), encoding="utf-8")
    return path


def mistakes(folder: Path, models: dict[str, str], more: str = "") -> list[str]:
    path = file_of(folder, models, more)
    with pytest.raises(SettingsErrors) as refused:
        load(path)
    return [str(each).removeprefix(f"{path}:") for each in refused.value.mistakes]


def test_a_models_whole_reuse_is_off_unless_asked_for(tmp_path: Path) -> None:
    model = load(file_of(tmp_path, {"a": ""})).models["a"]
    assert (model.cache.max_bytes, model.coalesce, model.fallback) == (0, False, None)
    assert not model.cache.public


def test_a_chain_of_fallbacks_that_ends_is_right(tmp_path: Path) -> None:
    settings = load(file_of(tmp_path, {"a": "fallback: b", "b": "fallback: c", "c": ""}))
    assert [model.fallback for model in settings.models.values()] == ["b", "c", None]


@pytest.mark.parametrize(
    ("models", "expected"),
    [
        ({"a": "fallback: x", "b": ""}, ["2: models.a.fallback: is 'x'; must be one of b"]),
        (
            {"a": "aliases: [b, org/x, gpt-4o]", "b": "aliases: [org/x, y/]"},
            [
                "2: models.a.aliases[0]: is 'b', the name of a model; must be a name of its own",
                "3: models.b.aliases[0]: is 'org/x', an alias of a; must be a name of its own",
                "3: models.b.aliases[1]: is no alias; must be at most 200 letters, digits, - . _, "
                "also in parts that / divides",
            ],
        ),
        ({"a": "fallback: x"}, ["2: models.a.fallback: is 'x'; must be left out"]),
        (
            {"a": "fallback: a"},
            [
                "2: models.a.fallback: leads back (a to a); must end at a model without a fallback",
            ],
        ),
        (
            {"a": "fallback: b", "b": "fallback: c", "c": "fallback: b"},
            [
                "3: models.b.fallback: leads back (b to c to b); must end at a model without a "
                "fallback",
                "4: models.c.fallback: leads back (c to b to c); must end at a model without a "
                "fallback",
            ],
        ),
        (
            {"a": "fallback: b, task: embed", "b": ""},
            [
                "2: models.a.fallback: is 'b', whose task is tensors; must be a model whose task "
                "is embed",
            ],
        ),
        (
            {"a": "fallback: 7"},
            ["2: models.a.fallback: is 7; must be text such as minilm-small; write it in quotes"],
        ),
    ],
)
def test_a_fallback_that_leads_astray_is_told_with_its_way(
    tmp_path: Path, models: dict[str, str], expected: list[str]
) -> None:
    assert mistakes(tmp_path, models) == expected


def test_a_mistake_elsewhere_hides_no_stray_fallback(tmp_path: Path) -> None:
    found = mistakes(tmp_path, {"a": "fallback: x", "b": "retry: 5"}, "gateway: {port: 0}\n")
    assert [each.split(":")[0] for each in found] == ["2", "3", "4"]


@pytest.mark.parametrize(
    "wrong", ["cache: {max_bytes: -1}", "cache: {ttl_s: 0}", "cache: {bytes: 1}", "coalesce: 1"]
)
def test_a_reuse_setting_out_of_bounds_is_refused(tmp_path: Path, wrong: str) -> None:
    assert len(mistakes(tmp_path, {"a": wrong})) == 1
