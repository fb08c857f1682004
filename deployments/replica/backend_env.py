"""The environment variables that backends' compilers and engines read.

Backends may not set the environment themselves; only the shell (`deployments`) may.

torch's compiler takes its cache folder from a variable only, and reads it when it first compiles.
vLLM takes its number of threads, its folders and, on a CPU, the default size of its cache from
variables only. That size would override a model's own, so for a model that sets one the variable is
removed. Anything else that is set in the server's environment stays as it is.
Source: vLLM's `envs.py` and `platforms/cpu.py`.
"""

from __future__ import annotations

import os
from collections.abc import MutableMapping
from pathlib import Path

from runtimes.types import RuntimeSettings

_TORCH = "TORCHINDUCTOR_CACHE_DIR"
_DEFAULTS = {
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_DO_NOT_TRACK": "1",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "VLLM_LOGGING_COLOR": "0",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # on a CPU: see `runtimes.vllm.serving`
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # else two replicas bind to the same processors
}
_CPU_CACHE = "VLLM_CPU_KVCACHE_SPACE"
_CPU_CACHE_GIB = "1"


def set_compiler_cache(cache_dir: Path) -> None:
    """Call it before any model of this process is loaded."""
    os.environ.setdefault(_TORCH, str(cache_dir / "torch-compiled"))


def set_engine_variables(
    settings: RuntimeSettings, environ: MutableMapping[str, str] | None = None
) -> None:
    """Call it before the engine's library is imported in this process. Does nothing for engines
    other than vLLM."""
    if settings.runtime != "vllm":
        return
    target = os.environ if environ is None else environ
    for name, value in _DEFAULTS.items():
        target.setdefault(name, value)
    target.setdefault("VLLM_CACHE_ROOT", str(settings.cache_dir / "vllm"))
    if settings.options.get("kv_cache_gib") is None:
        target.setdefault(_CPU_CACHE, _CPU_CACHE_GIB)
    else:
        target.pop(_CPU_CACHE, None)
    target["OMP_NUM_THREADS"] = str(settings.threads)
