"""The alerts through promtool: well-formed, firing where they should and only there."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from deployments.gateway.telemetry.metrics import GatewayMetrics
from deployments.gateway.telemetry.sample_tables import BatchSample, RequestLabels, RequestTimes
from deployments.tools.observability.alerts import (
    alerts,
    annotations_of,
    rule_groups,
    rules,
    rules_file,
)
from tests.kube.alert_cases import CASES, AlertCase
from tests.kube.prometheus import program

Promtool = Callable[..., subprocess.CompletedProcess[str]]
_BY_NAME = {alert.name: alert for alert in alerts()}


@pytest.fixture(scope="module")
def promtool(tmp_path_factory: pytest.TempPathFactory) -> Promtool:
    path = program("promtool")
    folder = tmp_path_factory.mktemp("rules")
    (folder / "rules.yaml").write_text(rules_file())

    def run(*arguments: str, **more: Any) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [path, *arguments], cwd=folder, capture_output=True, text=True, check=False, **more
        )

    return run


def test_promtool_finds_nothing_wrong_with_the_rules(promtool: Promtool) -> None:
    done = promtool("check", "rules", "--lint=all", "--lint-fatal", "rules.yaml")
    assert done.returncode == 0, done.stdout + done.stderr


def test_promtool_finds_nothing_wrong_with_a_gateways_page(promtool: Promtool) -> None:
    metrics = GatewayMetrics("gateway-0", ["m"], ["chat"])
    metrics.arrival("m", "chat", "bulk")
    metrics.request(RequestLabels("m", "chat", "bulk", "oip"), RequestTimes(0.1, queue_s=0.1), 1)
    metrics.batch(BatchSample("m", 128, 8, 0.25, 0.01, 0.01, 0.001, 0.001, 0.01, 0.001, 0.002))
    done = promtool("check", "metrics", input=metrics.exposition()[0].decode())
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_every_alert_is_seen_to_fire_and_to_be_quiet() -> None:
    assert {case.alert for case in CASES if case.fires is not None} == set(_BY_NAME)
    assert {case.alert for case in CASES if case.fires is None} == set(_BY_NAME)


def test_what_covers_days_is_evaluated_seldom_and_leaves_no_gaps() -> None:
    """A sample is current for five minutes."""
    groups = rules()["groups"]
    days = [each for each in groups if "d])" in str([rule["expr"] for rule in each["rules"]])]
    assert [each["name"] for each in days] == ["headrace-slo-days"]
    assert 60 < 60 * int(days[0]["interval"].removesuffix("m")) < 300


@pytest.mark.parametrize("days", [False, True], ids=["minutes", "days"])
def test_alerts_fire_on_what_they_are_for_and_on_nothing_else(
    promtool: Promtool, days: bool, tmp_path: Path
) -> None:
    cases = [case for case in CASES if (case.at > 1000) is days]
    done = tried(promtool, tmp_path, rules_file(), cases, "10m" if days else "1m")
    assert done.returncode == 0, done.stdout + done.stderr


# What may go wrong in an alert, by what stands there and what it becomes.
FAULTS = {
    "never fires": ("> 0.3\n", "> 3\n"),
    "always fires": ("> 0.3\n", "> 0.03\n"),
    "asks for what is not there": ("headrace_padding_ratio_sum", "headrace_padding_sum"),
    "says it of nobody": (
        "of what {{ $labels.model }} computes",
        "of what {{ $labels.m }} computes",
    ),
    "is told the wrong people": ("severity: warning", "severity: critical"),
    "comes too late": ("for: 15m", "for: 50m"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_in_an_alert_is_found(promtool: Promtool, tmp_path: Path, fault: str) -> None:
    cases = [case for case in CASES if case.alert == "HeadracePaddingIsHigh"]
    was, becomes = FAULTS[fault]
    assert was in rules_file()
    wrong = rules_file().replace(was, becomes)
    done = tried(promtool, tmp_path, wrong, cases)
    assert done.returncode == 1
    assert "HeadracePaddingIsHigh" in done.stderr


def test_a_query_that_is_none_is_refused(promtool: Promtool, tmp_path: Path) -> None:
    (tmp_path / "wrong.yaml").write_text(rules_file().replace("histogram_quantile(", "quantil("))
    done = promtool("check", "rules", str(tmp_path / "wrong.yaml"))
    assert done.returncode == 1
    assert 'unknown function with name "quantil"' in done.stderr


def tried(
    promtool: Promtool, folder: Path, rules: str, cases: Sequence[AlertCase], every: str = "1m"
) -> subprocess.CompletedProcess[str]:
    """The cases on these rules, which are evaluated so often."""
    (folder / "rules.yaml").write_text(rules)
    document = {
        "rule_files": [str(folder / "rules.yaml")],
        "evaluation_interval": every,
        "group_eval_order": [group.name for group in rule_groups()],
        "tests": [_test(case) for case in cases],
    }
    (folder / "cases.yaml").write_text(yaml.safe_dump(document))
    return promtool("test", "rules", str(folder / "cases.yaml"))


def _test(case: AlertCase) -> dict[str, Any]:
    looks = [_look(case.at, case.alert, _expected(case))]
    looks += [_look(case.at, name, []) for name in case.also_quiet]
    return {
        "name": f"{case.alert}: {case.why}",
        "interval": "1m",
        "input_series": [{"series": s, "values": values} for s, values in case.series.items()],
        "alert_rule_test": looks,
    }


def _look(at: int, alert: str, expected: list[Any]) -> dict[str, Any]:
    return {"eval_time": f"{at}m", "alertname": alert, "exp_alerts": expected}


def _expected(case: AlertCase) -> list[Any]:
    if case.fires is None:
        return []
    alert = _BY_NAME[case.alert]
    return [
        {
            "exp_labels": {**case.fires, "severity": str(alert.severity)},
            "exp_annotations": {**annotations_of(alert), "summary": case.says},
        }
    ]
