"""What looks like a key is not shown; what only looks long is."""

from __future__ import annotations

import random

import pytest

from yaml_document.credentials import redacted, without_keys

LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_"
KNOWN = [
    "hr_" + LETTERS[:43], "sk-proj-" + LETTERS[:24], "ghp_" + LETTERS[:36], "hf_" + LETTERS[:34],
    "AKIA" + "Z2" * 8, "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2lnbmF0dXJlLXNpZw",
    "glpat-" + LETTERS[:20], "xoxb-" + "12345678901-abcdef", "github_pat_" + LETTERS[:30],
]  # fmt: skip
AROUND = ["{}", "'{}'", "is '{}'; must be 1", "/v1/models/{}/ready", "a={},b", "[{}]", "x\n{}\ny"]


@pytest.mark.parametrize("key", KNOWN)
@pytest.mark.parametrize("around", AROUND)
def test_a_key_is_not_shown(key: str, around: str) -> None:
    for shown in (without_keys(around.format(key)), redacted(around.format(key))):
        assert shown == around.format(f"{key[:3]}…")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("Authorization: Bearer abcdefgh12", "Authorization: Bearer …"),
        ("s3://me:secret@host/bucket", "s3://…@host/bucket"),
        ("postgres://me:a:b@host", "postgres://…@host"),
        ("redis://:p@ss@host/1", "redis://…@host/1"),
    ],
)
def test_nor_is_what_stands_where_a_key_does(text: str, shown: str) -> None:
    assert without_keys(text) == shown


@pytest.mark.parametrize("length", [32, 43, 64])
def test_random_text_is_not_shown(length: int) -> None:
    rng = random.Random(length)
    for alphabet in (LETTERS, LETTERS[:62], "0123456789abcdef"):
        for _ in range(200):
            key = "".join(rng.choices(alphabet[:-2] if alphabet is LETTERS else alphabet, k=2))
            key += "".join(rng.choices(alphabet, k=length - 2))
            assert key[3:] not in redacted(f"is '{key}'; must be a number")


PLAIN = [
    "sentence-transformers/all-MiniLM-L6-v2-onnx-O4", "XLMRobertaForSequenceClassification",
    "Qwen2.5-0.5B-Instruct-GPTQ-Int4", "SmolLM2-135M-Instruct-Q4_K_M-2024-11-25",
    "/srv/models/Meta-Llama-3.1-8B-Instruct-AWQ-INT4/config.json", "gateway.haproxy_metrics_port",
    "tenants.acme.rate.requests_per_s", "sha256:" + "0123456789abcdef" * 4, "hr_classifier",
    "queue.max_rows, queue.max_late_rows, slo.latency_ms", "2027-01-31T00:00:00Z", "sk-learn",
    "http://127.0.0.1:8000/v2/models", "RAY_SERVE_HAPROXY_CONFIG_FILE_LOC", "the bearer of it",
    "a_very_long_name_of_a_model_with_many_words_in_it", "1234567890123456789012345678",
    "/root/.cache/hub/models--a--b/snapshots/5c38ec7c405ec4b44b94cc5a9bb96e735b38267a/m.onnx",
    "s3://models/a.onnx#sha256=" + "0123456789abcdef" * 4,
    "hr_employee_attrition_model", "sk-learn-iris-classifier-v2", "pk-segmentation-large-2024",
]  # fmt: skip


@pytest.mark.parametrize("text", PLAIN)
def test_what_is_no_key_is_shown(text: str) -> None:
    assert redacted(text) == text


def test_logs_keep_ids() -> None:
    ids = "trace 4bf92f3577b34da6a3ce929d0e0e4736, replica a1b2c3d4, request 0189d1c2-7f3a-7bd4"
    assert without_keys(ids) == ids


@pytest.mark.parametrize("piece", ["eyJ-", "sk-", "sk-a-", "hr_a-", "://a:", "bearer ", "hf_a"])
def test_the_search_takes_each_place_once(piece: str) -> None:
    """With quadratic time, 2 MB would take hours; here they are over in a second."""
    assert without_keys(piece * (2_000_000 // len(piece)))
