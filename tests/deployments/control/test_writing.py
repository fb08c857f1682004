"""Several writers of one list: whoever loses is told, and the list has every change that stands."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from typing import Any

import pytest

from deployments.control.application_list import AppList, beside_others, by_name, ours
from deployments.control.dashboard import ClusterError
from deployments.control.serve_config import serve_config
from deployments.control.writing import GAP_S, ChangeLost, Writer
from deployments.settings.tree import Settings

MAX_DELAY_S = 1.9
CONFIG = serve_config(Settings.model_validate({"models": {"m": {"runtime": "synthetic"}}}))


class Turns:
    """Threads on virtual time: one runs at a moment, the one that wakes first."""

    def __init__(self) -> None:
        self.now = 0.0
        self._wakes: dict[int, float] = {}
        self._running: int | None = None
        self._changed = threading.Condition()

    def sleep(self, seconds: float) -> None:
        me = threading.get_ident()
        with self._changed:
            self._wakes[me] = self.now + max(seconds, 0.0)
            self._pass_on()
            self._changed.wait_for(lambda: self._running == me)

    def _pass_on(self) -> None:
        self._running = None
        if self._wakes:
            self._running = min(self._wakes, key=lambda each: (self._wakes[each], each))
            self.now = max(self.now, self._wakes.pop(self._running))
        self._changed.notify_all()

    def run(self, works: list[Callable[[], None]]) -> None:
        """Run all to their ends; a fault of one is raised."""
        faults: list[BaseException] = []
        ready = threading.Barrier(len(works) + 1)

        def turn(work: Callable[[], None]) -> None:
            me = threading.get_ident()
            with self._changed:
                self._wakes[me] = 0.0
            ready.wait()
            with self._changed:
                self._changed.wait_for(lambda: self._running == me)
            try:
                work()
            except BaseException as fault:
                faults.append(fault)
            with self._changed:
                self._pass_on()

        threads = [threading.Thread(target=turn, args=(each,), daemon=True) for each in works]
        for each in threads:
            each.start()
        ready.wait()
        with self._changed:
            self._pass_on()
        for each in threads:
            each.join(20)
            assert not each.is_alive()
        if faults:
            raise faults[0]


class Serve:
    """Serve's list; each request reaches it late, and its answer is late too."""

    def __init__(self, turns: Turns, seed: int) -> None:
        self.turns = turns
        self.random = random.Random(seed)
        self.apps: dict[str, Any] = by_name(CONFIG)
        self.history: list[str] = []

    def _delay(self) -> None:
        long = self.random.random() < 0.3
        self.turns.sleep(self.random.uniform(0, MAX_DELAY_S if long else 0.05))

    def details(self) -> dict[str, Any]:
        """As the list was when Serve was asked; its answer takes time."""
        found = {
            name: {"deployed_app_config": app, "status": "RUNNING", "route_prefix": None}
            for name, app in self.apps.items()
        }
        self._delay()
        return {"applications": found}

    def put(self, config: Any) -> None:
        self._delay()
        self.apps = by_name(config)

    @property
    def pins(self) -> dict[str, int]:
        return dict(AppList.of(self.apps).control.pins)


def pin(name: str) -> Callable[[Any], dict[str, Any]]:
    def change(details: Any) -> dict[str, Any]:
        listed = AppList.of(ours(details))
        pins = {**listed.control.pins, name: 1}
        return beside_others(listed.with_control(pins=pins).all().values(), details)

    return change


def driver(serve: Serve, until_s: float) -> None:
    """Writes as the driver does: while nobody has a lease, and never a list read long before."""
    turns = serve.turns
    while turns.now < until_s:
        asked, details = turns.now, serve.details()
        listed = AppList.of(ours(details))
        if listed.control.lease is None and turns.now - asked <= GAP_S:
            revision = (listed.control.revision or 0) + 1
            follows = listed.with_control(revision=revision)
            serve.put(beside_others(follows.all().values(), details))
        turns.sleep(1.0)


@pytest.mark.parametrize("seeds", [range(n, 1000, 20) for n in range(20)], ids=str)
def test_no_change_that_succeeded_is_undone_silently(seeds):
    """Two deployers and the driver, each at any moment, with requests that are up to 1.9 s late."""
    succeeded = undone = refused = 0
    for seed in seeds:
        turns = Turns()
        serve = Serve(turns, seed)
        outcomes: dict[str, str] = {}

        def deploy(
            name: str, begin_s: float, turns: Turns, serve: Serve, outcomes: dict[str, str]
        ) -> None:
            turns.sleep(begin_s)
            writer = Writer(serve, turns.sleep, lambda: turns.now, name)
            try:
                writer.change("apply", pin(name))
                outcomes[name] = "stands"
            except ChangeLost:
                outcomes[name] = "undone"
            except ClusterError:
                outcomes[name] = "refused"

        chance = random.Random(seed)
        begins = [chance.uniform(0, 4), chance.uniform(0, 4)]
        given = (turns, serve, outcomes)
        turns.run(
            [
                lambda b=begins, g=given: deploy("a", b[0], *g),
                lambda b=begins, g=given: deploy("b", b[1], *g),
                lambda s=serve: driver(s, 12.0),
            ]
        )
        stand = {name for name, how in outcomes.items() if how == "stands"}
        assert stand <= serve.pins.keys(), (seed, outcomes, serve.pins)
        succeeded += len(stand)
        undone += sum(how == "undone" for how in outcomes.values())
        refused += sum(how == "refused" for how in outcomes.values())
    assert succeeded > 1.5 * len(seeds)
    assert undone + refused + succeeded == 2 * len(seeds)


class Alone:
    """One writer's time; `meanwhile` runs at each pause."""

    def __init__(self) -> None:
        self.now = 0.0
        self.meanwhile: Callable[[], None] = lambda: None

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.meanwhile()


class Quick(Serve):
    def _delay(self) -> None: ...


@pytest.fixture
def alone() -> Alone:
    return Alone()


@pytest.fixture
def serve(alone: Alone) -> Quick:
    return Quick(alone, 0)  # type: ignore[arg-type]


def a_lease(serve: Quick, **fields: Any) -> None:
    listed = AppList.of(serve.apps)
    block = {"holder": "x", "who": "user y (1)", "verb": "apply"}
    own = listed.with_control(revision=5).all()
    own["headrace-control"]["deployments"][0]["user_config"]["lease"] = block
    serve.apps = own


def writer(serve: Quick, alone: Alone) -> Writer:
    return Writer(serve, alone.sleep, lambda: alone.now, "user z (2)")


def test_a_lease_whose_holder_ended_is_taken_after_ten_seconds(alone, serve):
    a_lease(serve)
    writer(serve, alone).change("scale", pin("m"))
    assert serve.pins == {"m": 1}
    assert 10 <= alone.now < 17


def test_a_lease_that_others_keep_taking_is_waited_for_twenty_seconds(alone, serve):
    a_lease(serve)

    def another() -> None:
        listed = AppList.of(serve.apps)
        serve.apps = listed.with_control(revision=(listed.control.revision or 0) + 1).all()

    alone.meanwhile = another
    with pytest.raises(ClusterError, match=r"user y \(1\) is changing the cluster \(apply"):
        writer(serve, alone).change("scale", pin("m"))
    assert 20 <= alone.now < 21
    assert serve.pins == {}


def test_a_change_that_is_refused_gives_the_lease_back(alone, serve):

    def refused(details: Any) -> dict[str, Any]:
        raise ClusterError("no such model")

    with pytest.raises(ClusterError, match="no such model"):
        writer(serve, alone).change("scale", refused)
    assert AppList.of(serve.apps).control.lease is None


def test_a_list_that_was_read_long_before_is_not_put(alone, serve):
    tries = []

    def slow(details: Any) -> dict[str, Any]:
        tries.append(alone.now)
        if len(tries) < 3:
            alone.now += GAP_S + 0.1
        return pin("m")(details)

    writer(serve, alone).change("scale", slow)
    assert (len(tries), serve.pins) == (3, {"m": 1})


def test_an_operators_list_is_told_to_whoever_waits(alone, serve):
    change = writer(serve, alone).change("scale", pin("m"))
    writer(serve, alone).check(serve.details(), change)
    serve.apps = by_name(CONFIG)
    with pytest.raises(ChangeLost, match="by an operator"):
        writer(serve, alone).check(serve.details(), change)


def test_a_newer_versions_list_is_left_alone(alone, serve):
    before = serve.apps
    serve.apps["headrace-control"]["deployments"][0]["user_config"]["format"] = 99
    with pytest.raises(ClusterError, match="newer version of Headrace"):
        writer(serve, alone).change("scale", pin("m"))
    del serve.apps["headrace-control"]["deployments"][0]["user_config"]["format"]
    assert serve.apps == before
