"""The tree is described throughout, and its words agree with what it enforces."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from deployments.settings.lengths import LengthSettings, bucket_edges
from deployments.settings.model import ModelSettings
from deployments.settings.tree import Settings, TenantsSettings
from deployments.tools.console import settings_page
from yaml_document.shape import expected, fields_below, place_at, section_at

EVERY = list(fields_below(Settings))


@pytest.mark.parametrize(("name", "field"), EVERY, ids=[name for name, _ in EVERY])
def test_every_field_is_described_in_a_sentence(name: str, field: object) -> None:
    description = field.description  # type: ignore[attr-defined]
    assert description, f"{name} lacks a description"
    assert description.endswith(".")


def test_every_field_is_walked() -> None:
    names = [name for name, _ in EVERY]
    assert "models.<name>.slo.latency_ms" in names
    assert "tenants.<name>.keys" in names
    assert "gateway.limits.max_body_bytes" in names
    assert len(names) == len(set(names)) > 60


@pytest.mark.parametrize(
    ("longest", "edges"),
    [
        (1, (1,)),
        (15, (15,)),
        (16, (16,)),
        (17, (16, 17)),
        (32, (16, 32)),
        (100, (16, 32, 64, 100)),
        (512, (16, 32, 64, 128, 256, 512)),
    ],
)
def test_automatic_edges_are_powers_of_two_up_to_the_longest(
    longest: int, edges: tuple[int, ...]
) -> None:
    assert bucket_edges(LengthSettings(max=longest)) == edges


@pytest.mark.parametrize(
    ("buckets", "edges"),
    [(1, (512,)), (2, (64, 512)), (4, (16, 64, 128, 512)), (6, (16, 32, 64, 128, 256, 512))],
)
def test_a_number_of_buckets_thins_the_powers_and_keeps_the_longest(
    buckets: int, edges: tuple[int, ...]
) -> None:
    lengths = LengthSettings.model_validate({"max": 512, "buckets": buckets})
    assert bucket_edges(lengths) == edges
    assert lengths.max_buckets == buckets


@pytest.mark.parametrize("buckets", range(1, 65))
def test_any_number_of_buckets_starts_with_ascending_edges(buckets: int) -> None:
    edges = bucket_edges(LengthSettings.model_validate({"max": 1_048_576, "buckets": buckets}))
    assert len(edges) == min(buckets, 17)
    assert list(edges) == sorted(set(edges))
    assert edges[-1] == 1_048_576


def test_listed_edges_are_taken_as_they_are() -> None:
    lengths = LengthSettings.model_validate({"max": 64, "buckets": [10, 64]})
    assert bucket_edges(lengths) == (10, 64)
    assert lengths.max_buckets is None


@pytest.mark.parametrize(
    ("path", "words"),
    [
        (("models", "x", "batch", "max_size"), "a whole number, 1 to 65536"),
        (("models", "x", "slo", "timeout_ms"), "a number, above 0 and at most 86400000"),
        (("models", "x", "lengths", "buckets"), "auto, a whole number or a list of whole numbers"),
        (("models", "x", "admission", "codel"), "off, observe or enforce"),
        (("models", "x", "retry"), "true or false"),
        (
            ("models", "x", "runtime"),
            "onnxruntime, openvino, tensorrt, torch, vllm, python or synthetic",
        ),
        (("models", "x"), "a mapping"),
        (("models",), "a mapping"),
        (("tenants", "x", "models"), "a list of texts"),
        (("tenants", "x", "models", 0), "text"),
        (("gateway", "port"), "a whole number, 1 to 65535"),
        (("gateway", "log", "format"), "json or text"),
    ],
)
def test_what_is_right_is_read_off_the_tree(path: tuple[str | int, ...], words: str) -> None:
    place = place_at(Settings, path)
    assert place is not None
    assert expected(place) == words


def test_places_outside_the_tree_are_none() -> None:
    assert place_at(Settings, ("models", "x", "nothing")) is None
    assert place_at(Settings, ("gateway", "port", "x")) is None
    assert section_at(Settings, ("gateway", "port")) is None
    assert section_at(Settings, ("models", "x")) is ModelSettings


def test_a_key_belongs_to_one_tenant_once() -> None:
    key = "sha256:" + "a" * 64
    for tenants in ({"a": {"keys": [key, key]}}, {"a": {"keys": [key]}, "b": {"keys": [key]}}):
        with pytest.raises(ValidationError, match="is already a key of tenant a"):
            TenantsSettings.model_validate({"tenants": tenants})


@pytest.mark.parametrize(
    "key", ["sha256:" + "A" * 64, "sha256:" + "a" * 63, "sha256:" + "a" * 65, "a" * 64, "sha256:"]
)
def test_only_whole_hashes_are_keys(key: str) -> None:
    with pytest.raises(ValidationError, match="64 digits of lower-case hex"):
        TenantsSettings.model_validate({"tenants": {"a": {"keys": [key]}}})


def test_manual_is_current() -> None:
    written = settings_page.PAGE.read_text(encoding="utf-8")
    assert written == settings_page.page(), (
        "run `python -m deployments.tools.console.settings_page`"
    )


def test_manual_names_every_setting() -> None:
    page = settings_page.page()
    for name, field in EVERY:
        assert field.description is not None
        assert settings_page._cell(field.description) in page, name


def test_manual_lies_in_the_docs() -> None:
    assert settings_page.PAGE.relative_to(Path(settings_page.__file__).parents[3]).parts == (
        "docs",
        "settings.md",
    )
