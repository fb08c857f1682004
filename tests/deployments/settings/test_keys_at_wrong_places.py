"""A key that was pasted at a wrong place of a file is in no message about that file."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from deployments.settings.model import ModelSettings
from deployments.settings.plain import SettingsErrors
from deployments.settings_files.load import load, parse_tenants

OURS = "hr_Zk3vQ8s-1yXbT0aWm4LrN7cJ5dGf2hUe9iOoKpRtYxB"
KEYS = [OURS, OURS[3:], "5d9f47c36b997ef4d375eed037a63981a2d69842489063a9f7653b3a94d361a6",
        "sk-proj-9aKdL2mXw7QeR4tYu8iOp3sDf"]  # fmt: skip
PLACES = {
    "a number": "tenants: {acme: {weight: KEY}}",
    "a word of several": "tenants: {acme: {priority: KEY}}",
    "a list": "tenants: {acme: {keys: KEY}}",
    "a hash": "tenants: {acme: {keys: [KEY]}}",
    "a hash among fields": "tenants: {acme: {keys: [{hash: KEY}]}}",
    "a date": f"tenants: {{acme: {{keys: [{{hash: 'sha256:{'a' * 64}', expires: 'KEY'}}]}}}}",
    "a tenant's name": "tenants: {KEY: {weight: heavy}}",
    "a field's name": "tenants: {acme: {KEY: 1}}",
    "a name that is there twice": "tenants: {acme: {KEY: 1, KEY: 2}}",
    "operators' keys": "operators: {keys: KEY}\ntenants: {}",
    "an alias": "tenants: {acme: {keys: *KEY}}",
    "a tag": "tenants: {acme: {keys: !KEY x}}",
    "an anchor": "tenants: &KEY {acme: *KEY}",
    "a list without its end": "tenants: {acme: {keys: [KEY",
    "a text without its end": 'tenants:\n  acme:\n    keys: ["KEY]\n',
    "a line with two colons": "tenants:\n  acme:\n    keys: KEY: x\n",
}
OF_A_FILE = {
    "a section's name": "KEY: 1\ntenants: {}",
    "a directive": "%KEY x\n---\ntenants: {}",
    "a model of a tenant": "tenants: {acme: {models: [KEY]}}",
    "a port": "gateway: {port: KEY}",
    "an address": "gateway: {host: [KEY]}",
    "a runtime": "models: {more: {runtime: KEY}}",
    "an option": "models: {more: {runtime: synthetic, options: {KEY: 1}}}",
    "a model's name": "models: {KEY: {runtime: none}}",
}
MODELS = "models: {device: {runtime: synthetic}}\n"


def is_told(key: str, text: str) -> bool:
    return any(key[at : at + 8] in text for at in range(3, len(key) - 8))


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("place", PLACES)
def test_a_key_in_tenants_is_not_told(key: str, place: str) -> None:
    with pytest.raises(SettingsErrors) as wrong:
        parse_tenants(PLACES[place].replace("KEY", key), "tenants")
    assert not is_told(key, str(wrong.value)), wrong.value
    assert not any(is_told(key, repr(each)) for each in wrong.value.mistakes)


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("place", PLACES | OF_A_FILE)
def test_a_key_in_a_file_is_not_told(key: str, place: str, tmp_path: Path) -> None:
    text = (PLACES | OF_A_FILE)[place].replace("KEY", key)
    file = tmp_path / "settings.yaml"
    file.write_text(text if "models:" in text[:8] or text[0] == "%" else MODELS + text)
    with pytest.raises(SettingsErrors) as wrong:
        load(file)
    assert not is_told(key, str(wrong.value)), wrong.value


@pytest.mark.parametrize("key", KEYS[:1] + KEYS[3:])
@pytest.mark.parametrize("place", ["tenants: {KEY: {}}", "tenants: {acme: {keys: [{hash: 'sha256:"
                                   + "a" * 64 + "', id: KEY}]}}"])  # fmt: skip
def test_a_key_is_no_name(key: str, place: str) -> None:
    with pytest.raises(SettingsErrors, match="looks like a key"):
        parse_tenants(place.replace("KEY", key), "tenants")


def test_what_pydantic_says_itself_has_no_values() -> None:
    with pytest.raises(ValidationError) as wrong:
        ModelSettings.model_validate({"runtime": "synthetic", "version": 1, "options": OURS})
    assert OURS not in str(wrong.value)
