"""What an engine's process finds in its environment."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from deployments.replica import engine_env
from runtimes.types import RuntimeSettings


def settings(runtime: str = "vllm", **options: Any) -> RuntimeSettings:
    return RuntimeSettings(
        "m", runtime, None, Path("/cache"), threads=3, task="generate", options=options
    )


def test_vllm_is_told_its_cache_threads_and_to_be_quiet() -> None:
    environ: dict[str, str] = {}
    engine_env.prepare(settings(), environ)
    assert environ["VLLM_CPU_KVCACHE_SPACE"] == "1"
    assert environ["OMP_NUM_THREADS"] == "3"
    assert environ["VLLM_NO_USAGE_STATS"] == "1"
    assert environ["VLLM_ENABLE_V1_MULTIPROCESSING"] == "0"
    assert environ["VLLM_CACHE_ROOT"] == "/cache/vllm"


def test_what_the_servers_environment_says_stays() -> None:
    environ = {"VLLM_CPU_KVCACHE_SPACE": "7", "VLLM_LOGGING_LEVEL": "DEBUG"}
    engine_env.prepare(settings(), environ)
    assert environ["VLLM_CPU_KVCACHE_SPACE"] == "7"
    assert environ["VLLM_LOGGING_LEVEL"] == "DEBUG"


def test_the_models_own_size_of_cache_goes_before_the_environments() -> None:
    environ = {"VLLM_CPU_KVCACHE_SPACE": "7"}
    engine_env.prepare(settings(kv_cache_gib=0.25), environ)
    assert "VLLM_CPU_KVCACHE_SPACE" not in environ


def test_other_engines_need_nothing() -> None:
    environ: dict[str, str] = {}
    engine_env.prepare(settings("synthetic"), environ)
    assert environ == {}
