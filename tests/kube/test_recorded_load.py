"""Every query of the dashboards and the alerts in a real Prometheus, over what a real server said
under a real load (`loadtests/recordings`)."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from deployments.tools.observability import (
    dashboard_page,
    prometheus_binary,
    recorded_figure,
)
from deployments.tools.observability.grafana import DASHBOARDS
from deployments.tools.observability.panel_figures import ask
from deployments.tools.observability.prometheus_api import Answer, QueryFailed, query_range
from deployments.tools.observability.queries import plain
from deployments.tools.observability.recorded_prometheus import (
    WINDOW,
    RecordedServer,
    of_recording,
)
from deployments.tools.observability.war_room import WAR_ROOM
from loadtests.recordings import series_file, war_room
from loadtests.recordings.series_file import Recording
from tests.kube.chart import CHART, ROOT

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
def recording() -> Recording:
    return series_file.read(war_room.RECORDING)


@pytest.fixture(scope="module")
def server(
    recording: Recording, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RecordedServer]:
    try:
        prometheus_binary.needed("prometheus")
    except prometheus_binary.NoPrometheus as error:
        pytest.skip(f"QUERIES ARE NOT TRIED: {error}")
    with of_recording(recording, tmp_path_factory.mktemp("prometheus")) as started:
        yield started


def during(server: RecordedServer, query: str, when: tuple[float, float] = FLOOD_S) -> list[Answer]:
    """Only the values between these seconds of the recording; series that have any."""
    low, high = (round(second / server.span.step_s) for second in when)
    found = query_range(server.url, plain(query, WINDOW), server.span)
    cut = [Answer(each.labels, each.values[low:high]) for each in found]
    return [each for each in cut if not all(map(math.isnan, each.values))]


@pytest.mark.parametrize(("board", "panel"), PANELS, ids=[f"{b} {p.title}" for b, p in PANELS])
def test_a_panel_shows_something(board: str, panel, server: RecordedServer) -> None:
    asked = ask(server.url, panel, server.span, WINDOW)
    if panel.title in GPUS | GENERATED:
        assert asked.is_empty, "there is no GPU, and no model that generates"
        assert panel.may_be_empty
        return
    assert not asked.is_empty
    assert all(any(map(math.isfinite, values)) for values in asked.found.values()), (
        "a line of infinities"
    )


@pytest.mark.parametrize("dashboard", DASHBOARDS, ids=lambda dashboard: dashboard.name)
def test_grafanas_file_asks_what_was_tried(dashboard) -> None:
    model = json.loads(Path(CHART, "files", "dashboards", f"{dashboard.name}.json").read_text())
    shipped = [target["expr"] for panel in model["panels"] for target in panel.get("targets", ())]
    assert shipped == [query.promql for panel in dashboard.panels for query in panel.queries]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.get("record") or rule["alert"])
def test_a_rule_can_be_asked_and_what_it_records_is_there(
    rule: dict[str, str], server: RecordedServer
) -> None:
    found = query_range(server.url, rule["expr"], server.span)
    if "record" in rule:
        assert found
        assert query_range(server.url, rule["record"], server.span), "recorded"


def test_a_wrong_query_is_refused(server: RecordedServer) -> None:
    with pytest.raises(QueryFailed, match="parse error"):
        query_range(server.url, "sum by (", server.span)


def test_the_server_counts_what_the_client_had_answered(
    recording: Recording, server: RecordedServer
) -> None:
    answered = int(recording.facts["requests"].split()[-2])
    query = 'sum(headrace_requests_total{outcome="ok",model="device"})'
    (counted,) = query_range(server.url, query, server.span)
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


def test_the_documentations_picture_shows_the_panels_and_lines_that_there_are(
    server: RecordedServer,
) -> None:
    """Not to the last pixel: another Prometheus may round otherwise."""
    by_title = {panel.title: panel for panel in WAR_ROOM.panels}
    asked = [
        ask(server.url, by_title[title], server.span, WINDOW) for title in recorded_figure.SHOWN
    ]
    now = dashboard_page.svg(WAR_ROOM.title, asked)
    shown = (ROOT / "docs" / "figures" / "war-room.svg").read_text()
    said = re.compile(r'<text class="(?:title|name)"[^>]*>([^<]*)</text>')
    assert said.findall(shown) == said.findall(now), "recorded_figure draws it anew"


def test_alerts_of_what_did_not_happen_are_quiet(server: RecordedServer) -> None:
    quiet = ("HeadraceAccountingDrifts", "HeadraceReplicaIsEjected", "HeadracePaddingIsHigh")
    for rule in RULES:
        if rule.get("alert") in quiet:
            assert query_range(server.url, rule["expr"], server.span) == [], rule["alert"]
