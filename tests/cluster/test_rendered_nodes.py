"""Readiness probes meanwhile, without any machine."""

from __future__ import annotations

import threading

import pytest

from tests.cluster import rendered_nodes
from tests.cluster.rendered_nodes import RenderedNodes


class Worker:
    """Passes each probe, or raises `error`; `asked` once it was."""

    def __init__(self, error: Exception | None = None) -> None:
        self._error, self.asked = error, threading.Event()

    def passes(self, probe: str) -> bool:
        self.asked.set()
        if self._error is not None:
            raise self._error
        return probe == "readinessProbe"


def nodes_of(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> RenderedNodes:
    monkeypatch.setattr(rendered_nodes, "_PROBE_S", 0.001)
    nodes = object.__new__(RenderedNodes)
    nodes.workers = [worker]
    return nodes


def test_every_probe_meanwhile_is_listed(monkeypatch):
    worker = Worker()
    with nodes_of(worker, monkeypatch).probed() as probes:
        assert worker.asked.wait(5)
    assert probes
    assert all(probes)


def test_what_kept_a_probe_from_being_asked_is_raised_on_leaving(monkeypatch):
    worker = Worker(KeyError("readinessProbe"))
    with (
        pytest.raises(KeyError, match="readinessProbe"),
        nodes_of(worker, monkeypatch).probed(),
    ):
        assert worker.asked.wait(5)


def test_what_failed_meanwhile_comes_first(monkeypatch):
    worker = Worker(KeyError("readinessProbe"))

    def fail_meanwhile() -> None:
        with nodes_of(worker, monkeypatch).probed():
            assert worker.asked.wait(5)
            raise AssertionError("meanwhile")

    with pytest.raises(AssertionError, match="meanwhile"):
        fail_meanwhile()


class Ended:
    """A worker whose container has ended, or still runs."""

    def __init__(self, name: str, code: int | None) -> None:
        self.pod = {"metadata": {"name": name}}
        self.name, self.log, self.process, self.machine = name, f"{name} said", self, self
        self._code = code

    def poll(self) -> int | None:
        return self._code

    def kill(self) -> None:
        self.killed = True


def test_a_worker_that_has_ended_has_a_successor_of_another_name(monkeypatch):
    ended, runs = Ended("gateways-0", 1), Ended("cpu-1", None)
    nodes = object.__new__(RenderedNodes)
    nodes.workers, nodes.replaced = [ended, runs], []
    monkeypatch.setattr(nodes, "_worker", lambda pod: Ended(pod["metadata"]["name"], None))
    nodes.replace_ended()
    assert ended.killed
    assert [each.name for each in nodes.workers] == ["gateways-0-1", "cpu-1"]
    assert nodes.replaced == ["--- gateways-0\ngateways-0 said"]
    nodes.replace_ended()
    assert [each.name for each in nodes.workers] == ["gateways-0-1", "cpu-1"]
