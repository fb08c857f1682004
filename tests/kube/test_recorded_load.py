"""Every query of the dashboards and the alerts in a real Prometheus, over what a real server said
under a real load (`tests/kube/recordings`)."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from deployments.tools.observability.dashboards import DASHBOARDS
from tests.kube.chart import CHART
from tests.kube.prometheus import Answer, RecordedServer, of_recording, plain
from tests.kube.recordings import series_file, war_room
from tests.kube.recordings.series_file import SeriesRecording

PANELS = [(board.name, panel) for board in DASHBOARDS for panel in board.panels]
RULES = [
    rule
    for group in yaml.safe_load((CHART / "files" / "alerts.yaml").read_text())["groups"]
    for rule in group["rules"]
]
# In `war-room.yaml`: four times as much is asked for between these seconds.
FLOOD_S = (205, 285)
GPUS = {"GPU engine busy", "GPU memory in use"}
GENERATED = {"Tokens", "Time to the first token", "Time per further token"}


@pytest.fixture(scope="module")
def recording() -> SeriesRecording:
    return series_file.read(war_room.RECORDING)


@pytest.fixture(scope="module")
def server(
    recording: SeriesRecording, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RecordedServer]:
    with of_recording(recording, tmp_path_factory.mktemp("prometheus")) as started:
        yield started


def during(server: RecordedServer, query: str, when: tuple[float, float] = FLOOD_S) -> list[Answer]:
    """Only the values between these seconds of the recording; series that have any."""
    low, high = (round(second / server.every_s) for second in when)
    found = server.ask(plain(query))
    cut = [Answer(each.labels, each.values[low:high]) for each in found]
    return [each for each in cut if not all(map(math.isnan, each.values))]


@pytest.mark.parametrize(("board", "panel"), PANELS, ids=[f"{b} {p.title}" for b, p in PANELS])
def test_a_panel_shows_something(board: str, panel, server: RecordedServer) -> None:
    found = [each for query in panel.queries for each in server.ask(plain(query.promql))]
    lines = [each for each in found if not all(map(math.isnan, each.values))]
    if panel.title in GPUS | GENERATED:
        assert lines == [], "there is no GPU, and no model that generates"
        assert panel.may_be_empty
        return
    assert lines
    assert all(any(map(math.isfinite, each.values)) for each in lines), "a line of infinities"


@pytest.mark.parametrize("dashboard", DASHBOARDS, ids=lambda dashboard: dashboard.name)
def test_grafanas_file_asks_what_was_tried(dashboard) -> None:
    model = json.loads(Path(CHART, "files", "dashboards", f"{dashboard.name}.json").read_text())
    shipped = [target["expr"] for panel in model["panels"] for target in panel.get("targets", ())]
    assert shipped == [query.promql for panel in dashboard.panels for query in panel.queries]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.get("record") or rule["alert"])
def test_a_rule_can_be_asked_and_what_it_records_is_there(
    rule: dict[str, str], server: RecordedServer
) -> None:
    found = server.ask(rule["expr"])
    if "record" in rule:
        assert found
        assert server.ask(rule["record"]), "recorded"


def test_a_wrong_query_is_refused(server: RecordedServer) -> None:
    with pytest.raises(ValueError, match="parse error"):
        server.ask("sum by (")


def test_the_server_counts_what_the_client_had_answered(
    recording: SeriesRecording, server: RecordedServer
) -> None:
    answered = int(recording.facts["requests"].split()[-2])
    query = 'sum(headrace_requests_total{outcome="ok",model="device"})'
    (counted,) = server.ask(query)
    assert counted.values[-1] == pytest.approx(answered, rel=0.005)


def test_in_the_flood_the_one_who_floods_the_device_loses_its_promise_alone(
    server: RecordedServer,
) -> None:
    alert = next(rule for rule in RULES if rule.get("alert") == "HeadraceSloBurnsFast")
    assert {each.labels["tenant"] for each in during(server, alert["expr"])} == {"documents"}
    before = during(server, alert["expr"], (0, 190))
    assert before == []


def test_another_took_the_killed_replicas_place_and_no_request_was_lost(
    server: RecordedServer,
) -> None:
    query = 'max by (replica) (headrace_replica_duty_cycle{model="device"})'
    before, after = (
        {each.labels["replica"] for each in during(server, query, when)}
        for when in ((100, 115), (150, 165))
    )
    assert len(before) == len(after) == 3
    assert len(before & after) == 2
    assert during(server, 'sum(headrace_batches_total{end="lost"}) > 0', (150, 165))
    assert during(server, "sum(headrace_retries_total) > 0", (150, 165))
    assert not during(server, 'headrace_requests_total{outcome=~"lost|failed|error"}', (0, 375))


def test_alerts_of_what_did_not_happen_are_quiet(server: RecordedServer) -> None:
    quiet = ("HeadraceAccountingDrifts", "HeadraceReplicaIsEjected", "HeadracePaddingIsHigh")
    for rule in RULES:
        if rule.get("alert") in quiet:
            assert server.ask(rule["expr"]) == [], rule["alert"]
