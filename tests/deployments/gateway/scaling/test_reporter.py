"""The autoscaler hears at once what cannot wait, and nothing waits for it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from in_process import Stand, standing

from deployments.contract.scaling.messages import GatewayReport, ModelOutlook
from deployments.gateway.scaling import reporter
from deployments.gateway.scaling.reporter import DemandReporter

DEVICE = {"device": {"runtime": "synthetic", "slo": {"latency_ms": 200}}}
ONE_ROW = {"inputs": [{"name": "ids", "datatype": "INT64", "shape": [1, 2], "data": [1, 2]}]}
ASLEEP = ModelOutlook(may_sleep=True, wakes=True, ready_in_s=12.0)


class Autoscaler:
    """`answers`: what the next reports are answered with, then `outlooks`; an exception is raised,
    None never answers."""

    def __init__(self) -> None:
        self.reports: list[GatewayReport] = []
        self.outlooks: Mapping[str, ModelOutlook] = {}
        self.answers: list[Exception | None] = []
        self._heard = asyncio.Event()

    async def tell(self, report: GatewayReport) -> Mapping[str, ModelOutlook]:
        self.reports.append(report)
        self._heard.set()
        if self.answers:
            answer = self.answers.pop(0)
            if answer is None:
                await asyncio.Event().wait()
            assert answer is not None
            raise answer
        return self.outlooks

    async def heard(self, count: int) -> GatewayReport:
        """The report of that number, once it has come."""
        async with asyncio.timeout(5.0):
            while len(self.reports) < count:
                self._heard.clear()
                await self._heard.wait()
        return self.reports[count - 1]


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second is a minute here, so that what comes, comes because of a crossing."""
    monkeypatch.setattr(reporter, "EVERY_S", 60.0)
    monkeypatch.setattr(reporter, "MIN_S", 0.001)
    monkeypatch.setattr(reporter, "ANSWER_S", 0.01)


@asynccontextmanager
async def reporting(stand: Stand, autoscaler: Autoscaler) -> AsyncIterator[DemandReporter]:
    reports = DemandReporter("gateway-uid", stand.models, autoscaler.tell)
    task = asyncio.create_task(reports.run())
    yield reports
    task.cancel()


async def ask(stand: Stand, timeout_ms: int = 5000, **more: Any) -> int:
    async with stand.client() as client:
        headers = {"x-timeout-ms": str(timeout_ms)}
        answer = await client.post("/v2/models/device/infer", json=ONE_ROW, headers=headers)
        return answer.status_code


async def test_the_first_report_comes_at_once_and_names_what_there_is(tmp_path: Path) -> None:
    async with standing(DEVICE, tmp_path) as stand:
        assert await ask(stand) == 200
        autoscaler = Autoscaler()
        async with reporting(stand, autoscaler):
            report = await autoscaler.heard(1)
        assert report.gateway == "gateway-uid"
        load = report.models["device"]
        assert (load.demand.requests, load.demand.urgent) == (1, False)
        assert load.demand.served_s == pytest.approx(load.demand.offered_s)
        assert load.groups[""].hot == 1


async def test_a_request_that_no_replica_can_be_sent_is_told_at_once(tmp_path: Path) -> None:
    async with standing(DEVICE, tmp_path) as stand:
        autoscaler = Autoscaler()
        async with reporting(stand, autoscaler):
            await autoscaler.heard(1)
            stand.run_replicas("device", [])
            asking = asyncio.create_task(ask(stand))
            report = await autoscaler.heard(2)
            assert report.models["device"].demand.urgent
            assert report.models["device"].demand.requests == 1
            assert report.models["device"].groups[""].hot == 0
            stand.run_replicas("device", ["device-0"])
            assert await asking == 200


async def test_while_requests_go_on_coming_reports_grow_rarer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reporter, "MIN_S", 0.01)
    async with standing(DEVICE, tmp_path) as stand:
        autoscaler = Autoscaler()
        async with reporting(stand, autoscaler) as reports:
            await autoscaler.heard(1)
            stand.run_replicas("device", [])
            pauses, asking = [], []
            for number in range(2, 6):
                asking.append(asyncio.create_task(ask(stand)))
                await autoscaler.heard(number)
                await asyncio.sleep(0)
                pauses.append(reports._pause_s)
            assert pauses == [0.02, 0.04, 0.08, 0.16]
            stand.run_replicas("device", ["device-0"])
            assert set(await asyncio.gather(*asking)) == {200}
            stand.models.on_crossing()
            await autoscaler.heard(6)
            await asyncio.sleep(0)
            assert reports._pause_s == 0.01


async def test_a_backlog_beyond_half_of_the_slack_is_told_at_once(tmp_path: Path) -> None:
    device = DEVICE["device"] | {"options": {"base_ms": 20}, "batch": {"max_size": 1}}
    async with standing({"device": device}, tmp_path) as stand:
        assert await ask(stand) == 200  # so that it is known what a row takes
        autoscaler = Autoscaler()
        async with reporting(stand, autoscaler):
            await autoscaler.heard(1)
            asking = [asyncio.create_task(ask(stand)) for _ in range(30)]
            report = await autoscaler.heard(2)
            assert report.models["device"].demand.backlog_s > 0.05
            assert not report.models["device"].demand.urgent
            await asyncio.gather(*asking)


async def test_an_autoscaler_that_fails_or_hangs_holds_up_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reporter, "EVERY_S", 0.0)
    async with standing(DEVICE, tmp_path) as stand:
        autoscaler = Autoscaler()
        autoscaler.outlooks = {"device": ASLEEP}
        autoscaler.answers = [ValueError("it is not there"), None, RuntimeError("it died")]
        async with reporting(stand, autoscaler):
            await autoscaler.heard(2)
            assert await ask(stand) == 200
            await autoscaler.heard(5)
            assert stand.models.outlooks == {"device": ASLEEP}


async def test_what_was_heard_grows_old_while_nothing_more_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr(reporter, "clock", lambda: now[0])
    async with standing(DEVICE, tmp_path) as stand:
        stand.run_replicas("device", [])
        autoscaler = Autoscaler()
        autoscaler.outlooks = {"device": ASLEEP}
        reports = DemandReporter("g", stand.models, autoscaler.tell)
        queue = stand.models.served["device"].queue
        await reports._exchange()
        assert queue._dispatcher._requests.admission.capacity_in_s == 12.0
        autoscaler.answers = [RuntimeError("gone"), RuntimeError("gone")]
        for at, left_s in ((105.0, 7.0), (200.0, 0.0)):
            now[0] = at
            await reports._exchange()
            assert queue._dispatcher._requests.admission.capacity_in_s == left_s


async def test_a_refused_request_wakes_also_where_the_report_of_it_is_lost(tmp_path: Path) -> None:
    async with standing(DEVICE, tmp_path) as stand:
        stand.run_replicas("device", [])
        autoscaler = Autoscaler()
        autoscaler.outlooks = {"device": ASLEEP}
        reports = DemandReporter("g", stand.models, autoscaler.tell)
        await reports._exchange()
        assert await ask(stand, timeout_ms=500) == 503  # over before a replica is expected
        autoscaler.answers = [RuntimeError("it starts anew"), RuntimeError("it starts anew")]
        for _ in range(4):
            await reports._exchange()
        told = [report.models["device"].demand for report in autoscaler.reports]
        assert [each.urgent for each in told] == [False, True, True, True, False]
        assert told[-1].backlog_s == 0.0
