"""Keys in settings: bare hashes and mappings, what of them is refused, and the way back to text."""

from __future__ import annotations

from math import inf
from pathlib import Path

import pytest
from settings_files import DEVICE, HASH_1, HASH_2, mistakes, write

from deployments.settings.key import KeySettings
from deployments.settings_files.load import load, parse_tenants, tenants_text

MOMENT = "2027-01-31T00:00:00Z"
MOMENT_S = 1_801_353_600.0


def test_a_bare_hash_is_a_key_that_is_named_by_it_and_always_good() -> None:
    key = KeySettings.model_validate(HASH_1)
    assert (key.hash, key.kid) == (HASH_1, "1" * 12)
    assert (key.begins_s, key.ends_s) == (-inf, inf)


def test_a_mapping_says_how_long_and_what_for() -> None:
    key = KeySettings.model_validate(
        {"hash": HASH_1, "id": "laptop", "not_before": "2027-01-30T23:00:00+01:00",
         "expires": MOMENT, "models": ["device"], "max_length": 5, "rate": {"tokens_per_s": 3}}
    )  # fmt: skip
    assert (key.kid, key.models, key.max_length) == ("laptop", ("device",), 5)
    assert (key.begins_s, key.ends_s) == (MOMENT_S - 2 * 3600, MOMENT_S)
    assert key.rate is not None
    assert key.rate.tokens_per_s == 3


def test_keys_are_published_as_they_were_written(tmp_path: Path) -> None:
    text = DEVICE + (
        f"tenants: {{a: {{keys: ['{HASH_1}', {{id: x, hash: '{HASH_2}', expires: {MOMENT}}}]}}}}\n"
    )
    settings = load(write(tmp_path, text))
    published = tenants_text(settings)
    assert f"- {HASH_1}" in published
    assert "not_before" not in published
    assert parse_tenants(published, "published").tenants == settings.tenants


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("{id: x}", "keys[0].hash: is missing"),
        ("7", "keys[0]: is 7; must be a mapping"),
        (f"{{hash: '{HASH_1}', expires: 2027-01-31}}", "expires: is not valid; must be a date and"),
        (f"{{hash: '{HASH_1}', expires: '2027-01-31T00:00:00'}}", "expires: is not valid"),
        (f"{{hash: '{HASH_1}', not_before: 2027-13-31T00:00:00Z}}", "not_before: is not valid"),
        (f"{{hash: '{HASH_1}', expires: 5}}", "expires: is 5; must be text"),
        (f"{{hash: '{HASH_1}', expires: {MOMENT}, not_before: {MOMENT}}}", "must be later than"),
        (f"{{hash: '{HASH_1}', id: a b}}", "keys[0].id: is no key's id"),
        (
            f"{{hash: '{HASH_1}', models: [device, other:x]}}",
            "models[1]: is 'other:x'; must be one",
        ),
        (f"{{hash: '{HASH_1}', max_length: 0}}", "max_length: is 0; must be"),
        (f"{{hash: '{HASH_1}', rate: {{x: 1}}}}", "rate.x: unknown setting"),
    ],
)
def test_a_key_that_cannot_be_meant_is_refused(tmp_path: Path, key: str, expected: str) -> None:
    (only,) = mistakes(tmp_path, DEVICE + f"tenants: {{a: {{keys: [{key}]}}}}\n")
    assert expected in only


def test_a_live_key_in_a_mapping_is_not_shown(tmp_path: Path) -> None:
    text = DEVICE + "tenants: {a: {keys: [{hash: hr_secretsecret}]}}\n"
    (only,) = mistakes(tmp_path, text)
    assert "keys[0].hash: is a key; write its hash" in only
    assert "secretsecret" not in only


def test_two_keys_are_not_called_alike_whosever_they_are(tmp_path: Path) -> None:
    keys = f"[{{id: x, hash: '{HASH_1}'}}]"
    operators = f"operators: {{keys: [{{id: x, hash: '{HASH_2}'}}]}}\n"
    (only,) = mistakes(tmp_path, DEVICE + f"tenants: {{a: {{keys: {keys}}}}}\n" + operators)
    assert "operators.keys[0].id: is x, which is already the id of a key of tenant a" in only
    named = f"[{{id: '{'1' * 12}', hash: '{HASH_2}'}}]"
    text = DEVICE + f"tenants: {{a: {{keys: ['{HASH_1}']}}, b: {{keys: {named}}}}}\n"
    (only,) = mistakes(tmp_path, text)
    assert "tenants.b.keys[0].id" in only


def test_one_hash_belongs_to_one_tenant_however_it_is_written(tmp_path: Path) -> None:
    keys = f"a: {{keys: ['{HASH_1}']}}, b: {{keys: [{{id: x, hash: '{HASH_1}'}}]}}"
    (only,) = mistakes(tmp_path, DEVICE + f"tenants: {{{keys}}}\n")
    assert "tenants.b.keys[0]: is already a key of tenant a" in only


def test_an_operators_key_says_nothing_of_models(tmp_path: Path) -> None:
    text = DEVICE + f"operators: {{keys: [{{hash: '{HASH_1}', models: [device]}}]}}\n"
    (only,) = mistakes(tmp_path, text)
    assert "operators.keys[0].models: unknown setting" in only


def test_a_tenant_may_name_adapters_of_a_model_that_is_there(tmp_path: Path) -> None:
    text = DEVICE + "tenants: {a: {models: ['device:sql', 'device:*']}}\n"
    assert load(write(tmp_path, text)).tenants["a"].models == ("device:sql", "device:*")
    (only,) = mistakes(tmp_path, DEVICE + "tenants: {a: {models: ['gone:sql']}}\n")
    assert "tenants.a.models[0]: is 'gone:sql'; must be one of device" in only
