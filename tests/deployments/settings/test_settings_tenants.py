"""Tenants in a settings file or in one of their own: keys, priorities, and no open door."""

from __future__ import annotations

from pathlib import Path

import pytest
from settings_files import DEVICE, HASH_1, mistakes, write

from deployments.settings.plain import SettingsErrors
from deployments.settings_files.load import load, load_tenants, parse_tenants, tenants_text


def test_a_key_in_the_place_of_its_hash_is_not_shown(tmp_path: Path) -> None:
    (only,) = mistakes(tmp_path, DEVICE + "tenants: {a: {keys: [hr_secretsecret]}}\n")
    assert "is a key; write its hash" in only
    assert "secretsecret" not in only


def test_a_gateway_that_is_open_has_no_tenants_with_keys(tmp_path: Path) -> None:
    for keys in (f"['{HASH_1}']", "[]"):
        tenants = f"tenants: {{a: {{keys: {keys}}}}}\n"
        (only,) = mistakes(tmp_path, DEVICE + tenants + "gateway: {auth: open}\n")
        assert "gateway.auth: is open, yet tenant a has keys; must be required" in only
    (only,) = mistakes(tmp_path, DEVICE + "gateway: {auth: closed}\n")
    assert "gateway.auth" in only


def test_a_list_of_keys_whose_lines_were_taken_away_is_refused(tmp_path: Path) -> None:
    (only,) = mistakes(tmp_path, DEVICE + "tenants: {a: {keys: }}\n")
    assert "tenants.a.keys: is empty; must be a list of hashes, or [] if nobody" in only


def test_an_emptied_list_of_keys_is_not_the_same_as_none(tmp_path: Path) -> None:
    text = DEVICE + "tenants: {a: {keys: []}, b: {}}\n"
    settings = load(write(tmp_path, text))
    assert (settings.tenants["a"].keys, settings.tenants["b"].keys) == ((), None)
    published = parse_tenants(tenants_text(settings), "published")
    assert (published.tenants["a"].keys, published.tenants["b"].keys) == ((), None)


def test_tenants_priorities_are_those_of_the_gateway(tmp_path: Path) -> None:
    gateway = "gateway: {priorities: [gold, silver]}\n"
    text = DEVICE + gateway + "tenants: {a: {priority: gold}}\n"
    assert load(write(tmp_path, text)).tenants["a"].priority == "gold"
    (only,) = mistakes(tmp_path, DEVICE + gateway + "tenants: {a: {priority: bulk}}\n")
    assert only == "5: tenants.a.priority: is 'bulk'; must be one of gold, silver"


def test_a_mistake_elsewhere_hides_no_unknown_priority(tmp_path: Path) -> None:
    text = (
        DEVICE
        + "    retry: 1\ngateway: {priorities: [gold], port: 0}\ntenants: {a: {priority: x}}\n"
    )
    found = mistakes(tmp_path, text)
    assert [each.split(": ")[1] for each in found] == [
        "models.device.retry",
        "gateway.port",
        "tenants.a.priority",
    ]


def test_tenants_may_have_a_file_of_their_own(tmp_path: Path) -> None:
    path = write(tmp_path, "tenants: {a: {weight: 3, models: [anything]}}\n")
    assert load_tenants(path).tenants["a"].weight == 3


def test_tenants_of_a_whole_file_ignore_its_models(tmp_path: Path) -> None:
    path = write(tmp_path, "models: {broken: 5}\ntenants: {a: {}}\n")
    assert list(load_tenants(path).tenants) == ["a"]
    assert not load_tenants(path).controllers.frozen
    assert load_tenants(write(tmp_path, DEVICE)).tenants == {}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("tenant: {a: {}}\n", "tenant: unknown setting; did you mean tenants?"),
        ("tenants:\n", "tenants: is empty; must be a mapping"),
        ("gateway: {}\n", "tenants: is missing; must be a mapping"),
        ("tenants: {a: {weight: -1}}\n", "tenants.a.weight: is -1"),
        ("controllers: {frozen: true}\n", "tenants: is missing; must be a mapping"),
        ("tenants: {}\ncontrollers: {frozen: 2}\n", "controllers.frozen: is 2"),
        ("tenants: {a: {priority: gold}}\n", "tenants.a.priority: is 'gold'; must be one of"),
        ("tenants: {a: {}, a: {}}\n", "tenants.a: is set twice, on lines 1 and 1"),
    ],
)
def test_tenants_file_that_would_open_the_door_is_refused(
    tmp_path: Path, text: str, expected: str
) -> None:
    with pytest.raises(SettingsErrors) as refused:
        load_tenants(write(tmp_path, text))
    assert expected in str(refused.value)
