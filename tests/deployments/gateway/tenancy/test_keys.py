"""Keys are random, recognisable, and known to the settings by their hash alone."""

from __future__ import annotations

import hashlib

from deployments.gateway.tenancy.keys import hash_key, new_key
from deployments.settings import TenantSettings


def test_new_key_comes_with_the_hash_that_settings_take() -> None:
    key, hashed = new_key()
    assert TenantSettings.model_validate({"keys": [hashed]}).keys == (hashed,)
    assert hashed == "sha256:" + hashlib.sha256(key.encode()).hexdigest()


def test_keys_differ_and_hold_32_random_bytes() -> None:
    keys = {new_key()[0] for _ in range(50)}
    assert len(keys) == 50
    assert all(key.startswith("hr_") and len(key) == 3 + 43 for key in keys)


def test_text_and_bytes_of_a_key_hash_alike() -> None:
    assert hash_key("hr_é") == hash_key("hr_é".encode())
