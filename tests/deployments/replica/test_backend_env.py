"""What compilers and engines find in their process's environment."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from deployments.replica import backend_env
from runtimes.types import RuntimeSettings

VARIABLE = "TORCHINDUCTOR_CACHE_DIR"


def test_cache_folder_is_told_to_the_compiler(monkeypatch):
    monkeypatch.setenv(VARIABLE, "")
    monkeypatch.delenv(VARIABLE)
    backend_env.set_compiler_cache(Path("/cache"))
    assert os.environ[VARIABLE] == "/cache/torch-compiled"


def test_folder_that_was_chosen_stays(monkeypatch):
    monkeypatch.setenv(VARIABLE, "/mine")
    backend_env.set_compiler_cache(Path("/cache"))
    assert os.environ[VARIABLE] == "/mine"


def settings(runtime: str = "vllm", **options: Any) -> RuntimeSettings:
    return RuntimeSettings(
        "m", runtime, None, Path("/cache"), threads=3, task="generate", options=options
    )


def test_vllm_is_told_its_cache_threads_and_to_be_quiet() -> None:
    environ: dict[str, str] = {}
    backend_env.set_engine_variables(settings(), environ)
    assert environ["VLLM_CPU_KVCACHE_SPACE"] == "1"
    assert environ["OMP_NUM_THREADS"] == "3"
    assert environ["VLLM_NO_USAGE_STATS"] == "1"
    assert environ["VLLM_ENABLE_V1_MULTIPROCESSING"] == "0"
    assert environ["VLLM_CACHE_ROOT"] == "/cache/vllm"


def test_what_the_servers_environment_says_stays() -> None:
    environ = {"VLLM_CPU_KVCACHE_SPACE": "7", "VLLM_LOGGING_LEVEL": "DEBUG"}
    backend_env.set_engine_variables(settings(), environ)
    assert environ["VLLM_CPU_KVCACHE_SPACE"] == "7"
    assert environ["VLLM_LOGGING_LEVEL"] == "DEBUG"


def test_the_models_own_size_of_cache_goes_before_the_environments() -> None:
    environ = {"VLLM_CPU_KVCACHE_SPACE": "7"}
    backend_env.set_engine_variables(settings(kv_cache_gib=0.25), environ)
    assert "VLLM_CPU_KVCACHE_SPACE" not in environ


def test_other_engines_need_nothing() -> None:
    environ: dict[str, str] = {}
    backend_env.set_engine_variables(settings("synthetic"), environ)
    assert environ == {}
