"""Serve's applications, asked of its controller: its answers, and what is said of its silence."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import ray

from deployments.control import serve_controller
from deployments.control.dashboard import ClusterError
from deployments.control.serve_controller import AsyncServeController, ServeController

DETAILS = {"applications": {"model-a": {"status": "RUNNING"}}}


class Controller:
    """Answers with `DETAILS`; `applied`: what it was told to apply."""

    def __init__(self) -> None:
        self.applied: list[Any] = []
        self.get_serve_instance_details = SimpleNamespace(remote=self._details)
        self.apply_config = SimpleNamespace(remote=self.applied.append)

    async def _awaited(self) -> dict[str, Any]:
        return DETAILS

    def _details(self) -> Any:
        return self._awaited()


@pytest.fixture
def controller(monkeypatch: pytest.MonkeyPatch) -> Controller:
    made = Controller()
    monkeypatch.setattr(ray, "get_actor", lambda name, namespace: made)
    return made


def test_a_list_is_put_as_serve_reads_it(controller: Controller, monkeypatch) -> None:
    monkeypatch.setattr(ray, "get", lambda asked, timeout: asked)
    ServeController().put({"applications": [{"name": "a", "import_path": "a:b"}]})
    assert [each.name for each in controller.applied[0].applications] == ["a"]


async def test_details_are_those_of_the_controller(controller: Controller) -> None:
    assert await AsyncServeController().applications() == DETAILS["applications"]


@pytest.mark.parametrize("fault", [ValueError("no actor"), ray.exceptions.GetTimeoutError()])
def test_a_controller_that_is_away_is_said_to_be(monkeypatch, fault: Exception) -> None:
    def away(name: str, namespace: str) -> Any:
        raise fault

    monkeypatch.setattr(serve_controller.ray, "get_actor", away)
    with pytest.raises(ClusterError, match="Serve's controller does not answer"):
        ServeController().details()


async def test_a_restarted_controller_is_looked_up_again(controller, monkeypatch) -> None:
    asked = AsyncServeController()
    await asked.applications()

    async def gone() -> Any:
        raise ray.exceptions.RayActorError

    with monkeypatch.context() as away:
        away.setattr(controller, "_awaited", gone)
        with pytest.raises(ray.exceptions.RayActorError):
            await asked.applications()
    assert await asked.applications() == DETAILS["applications"]
