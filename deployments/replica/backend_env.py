"""The environment variables, threads and processors that a backend gets in this process.

Backends may not set the environment themselves. torch's compiler takes its cache folder from a
variable; vLLM its number of threads, its folders and, on a CPU, the default size of its cache.

If a Ray node counts no more CPUs than it has, a replica computes with as many threads as Ray
reserved CPUs for it (`num_cpus`); else with its share of the CPUs that this container may use.
Processors are bound (`pin`) only if nothing else runs on them. Where others do, the model runs
unbound: that changes no answer, so it is logged and not an error.
Sources: vLLM's `envs.py`; Ray's `get_assigned_resources`; Kubernetes' CPU management policies.
"""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Mapping, MutableMapping
from pathlib import Path
from typing import Any

from deployments.settings.replicas import ReplicaSettings
from runtimes.host import allowed_cpus, own_processors
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


def set_compiler_cache(cache_dir: Path) -> None:
    """Call it before any model of this process is loaded."""
    os.environ.setdefault(_TORCH, str(cache_dir / "torch-compiled"))


def set_engine_variables(
    settings: RuntimeSettings, environ: MutableMapping[str, str] | None = None
) -> None:
    """Call it before the engine's library, or a Python class, is imported in this process. Does
    nothing for other backends."""
    target = os.environ if environ is None else environ
    if settings.runtime == "python":
        target.setdefault("OMP_NUM_THREADS", str(settings.threads))
    if settings.runtime != "vllm":
        return
    for name, value in _DEFAULTS.items():
        target.setdefault(name, value)
    target.setdefault("VLLM_CACHE_ROOT", str(settings.cache_dir / "vllm"))
    if settings.options.get("kv_cache_gib") is None:
        target.setdefault(_CPU_CACHE, "1")  # GiB
    else:
        target.pop(_CPU_CACHE, None)
    target["OMP_NUM_THREADS"] = str(settings.threads)


logger = logging.getLogger("headrace.replica")


def reserved_cpus() -> float | None:
    """CPUs that Ray reserves for this actor; None if Ray counts CPUs that do not exist."""
    import ray

    context: Any = ray.get_runtime_context()
    node_id = context.get_node_id()
    nodes: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]
    counted = next((n["Resources"].get("CPU", 0.0) for n in nodes if n["NodeID"] == node_id), 0.0)
    if counted > allowed_cpus():
        return None
    return float(context.get_assigned_resources().get("CPU", 0.0))


def threads(replicas: ReplicaSettings, reserved: float | None) -> int:
    """Number of threads, at least 1. `reserved`: CPUs, as `reserved_cpus` returns them."""
    if replicas.threads:
        return replicas.threads
    if reserved is None:
        return max(1, allowed_cpus() // replicas.initial)
    return max(1, min(math.ceil(reserved), allowed_cpus()))


def unpinned_where_shared(
    name: str, options: Mapping[str, Any], threads: int, reserved: float | None
) -> Mapping[str, Any]:
    """The model's options; without its `pin` if that would bind processors that others run on. The
    log then says why."""
    if options.get("pin", "off") == "off":
        return options
    why = shared_because(threads, reserved)
    if why is None:
        return options
    logger.warning("option pin is left out: %s", why, extra={"model": name})
    return {**options, "pin": "off"}


def shared_because(
    threads: int, reserved: float | None, environ: Mapping[str, str] | None = None
) -> str | None:
    """Why this replica may not bind its processors; None if it may."""
    given = os.environ if environ is None else environ
    may_run_on, allowed = own_processors(), allowed_cpus()
    if allowed < may_run_on:
        return (
            f"this container is given the time of {allowed} processors, anywhere among "
            f"{may_run_on}; give it a set of its own (cpuset)"
        )
    if "KUBERNETES_SERVICE_HOST" in given and may_run_on >= (os.cpu_count() or 1):
        return (
            "this pod runs on all processors of its node, as others do; the kubelet's static CPU "
            "manager policy gives a pod of whole CPUs, requests equal to limits, its own"
        )
    if reserved is not None and reserved < threads:
        return (
            f"Ray reserved {reserved:g} CPUs for {threads} threads, and may place others on the "
            f"rest; set replicas.num_cpus to {threads}"
        )
    return None
