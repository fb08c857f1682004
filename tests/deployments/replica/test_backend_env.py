"""What compilers and engines find in their process's environment."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ray

from deployments.replica import backend_env
from deployments.settings.replicas import ReplicaSettings
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


DEFAULTS = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "OMP_NUM_THREADS": "3",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_CACHE_ROOT": "/cache/vllm",
}
OWN = {"VLLM_CPU_KVCACHE_SPACE": "7", "VLLM_LOGGING_LEVEL": "DEBUG"}


@pytest.mark.parametrize(
    ("environ", "asked", "found"),
    [
        ({}, settings(), DEFAULTS),
        (OWN, settings(), OWN),
        # The model's own size of the cache goes before the environment's.
        (OWN, settings(kv_cache_gib=0.25), {"VLLM_CPU_KVCACHE_SPACE": None}),
        ({}, settings("synthetic"), dict.fromkeys(DEFAULTS)),
    ],
)
def test_vllm_is_told_what_nobody_has_said(environ, asked, found) -> None:
    environ = dict(environ)
    backend_env.set_engine_variables(asked, environ)
    assert {name: environ.get(name) for name in found} == found


@pytest.fixture
def machine(monkeypatch):
    """Sets what this container may use, where it may run, and what the machine has."""

    def of(allowed: int, may_run_on: int | None = None, online: int = 64) -> None:
        may = may_run_on or allowed
        monkeypatch.setattr(backend_env, "allowed_cpus", lambda: allowed)
        monkeypatch.setattr(backend_env.os, "sched_getaffinity", lambda _: set(range(may)))
        monkeypatch.setattr(backend_env.os, "cpu_count", lambda: online)

    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    return of


@pytest.mark.parametrize(
    ("reserved", "count", "threads"),
    [
        (None, 1, 8), (None, 2, 4), (None, 3, 2), (None, 9, 1),
        (4.0, 3, 4), (0.5, 1, 1), (1.5, 1, 2), (0.0, 1, 1), (16.0, 1, 8),
    ],
)  # fmt: skip
def test_threads_are_what_is_reserved_else_a_share(machine, reserved, count, threads):
    machine(8)
    assert backend_env.threads(ReplicaSettings(count=count), reserved) == threads


@pytest.mark.parametrize("reserved", [None, 1.0])
def test_threads_that_are_set_stand(machine, reserved):
    machine(8)
    assert backend_env.threads(ReplicaSettings(threads=3), reserved) == 3


@pytest.mark.parametrize(
    ("counted", "reserved"), [(8.0, 2.0), (4.0, 2.0), (9.0, None), (1000.0, None)]
)
def test_reservations_are_real_where_ray_counts_no_more_cpus_than_there_are(
    machine, monkeypatch, counted, reserved
):
    machine(8)
    nodes: list[dict[str, Any]] = [
        {"NodeID": "other", "Resources": {"CPU": 1.0}},
        {"NodeID": "own", "Resources": {"CPU": counted}},
    ]
    context = SimpleNamespace(
        get_node_id=lambda: "own", get_assigned_resources=lambda: {"CPU": 2.0, "GPU": 1.0}
    )
    monkeypatch.setattr(ray, "nodes", lambda: nodes)
    monkeypatch.setattr(ray, "get_runtime_context", lambda: context)
    assert backend_env.reserved_cpus() == reserved


@pytest.mark.parametrize("pin", ["cores", "numa"])
@pytest.mark.parametrize("reserved", [None, 4.0, 6.0])
def test_processors_of_ones_own_are_bound(machine, pin, reserved):
    machine(8)
    options = {"pin": pin, "streams": 1}
    assert backend_env.unpinned_where_shared("m", options, 4, reserved) == options


@pytest.mark.parametrize(
    ("allowed", "may_run_on", "reserved", "why"),
    [
        (8, 64, None, "the time of 8 processors, anywhere among 64"),
        (8, 8, 0.5, "Ray reserved 0.5 CPUs for 4 threads"),
        (8, 8, 3.0, "set replicas.num_cpus to 4"),
    ],
)
def test_processors_that_others_run_on_are_not_bound_and_the_log_says_why(
    machine, caplog, allowed, may_run_on, reserved, why
):
    machine(allowed, may_run_on)
    options = {"pin": "cores", "streams": 1}
    found = backend_env.unpinned_where_shared("m", options, 4, reserved)
    assert found == {"pin": "off", "streams": 1}
    assert why in caplog.text


def test_a_pod_has_processors_of_its_own_only_where_they_are_fewer_than_the_nodes(machine):
    pod = {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}
    machine(64)
    assert "static CPU manager policy" in str(backend_env.shared_because(4, None, pod))
    assert backend_env.shared_because(4, None, {}) is None
    machine(8)
    assert backend_env.shared_because(4, None, pod) is None


def test_nothing_is_said_where_nothing_is_to_be_bound(machine, caplog):
    machine(8, 64)
    for options in ({}, {"pin": "off"}):
        assert backend_env.unpinned_where_shared("m", options, 4, 0.5) is options
    assert caplog.text == ""
