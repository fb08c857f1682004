"""Is a promise judged by what was offered, and is what is wrong with its file told in a line?"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from pydantic import ValidationError

from loadtests import command
from loadtests.command import main
from loadtests.results.promises import Promise, PromiseFile, judge, load_file
from loadtests.results.record import Client, Record, Second, TenantLengthStats, load, save
from loadtests.traffic.scenario_file import ScenarioErrors

SHIPPED = Path(command.__file__).parent / "promises"
SCENARIO = """
duration_s: 1
arrivals: {rate: 200}
lengths: {fixed: 8}
tenants: {chat: {}, crawl: {}}
"""
PLAYED = {
    "protocol": "openai-embeddings", "model": "m", "scenario": "some.yaml", "slo_ms": 100
}  # fmt: skip


def record(latencies_ms: list[float], *, offered: int, **changes: Any) -> Record:
    cell = TenantLengthStats(offered=offered, tokens_out=10 * offered)
    for latency_ms in latencies_ms:
        cell.latency.add(latency_ms / 1e3)
        cell.in_slo += latency_ms <= 100
    known = {"name": "a", "seconds": 10.0, "edges": (8,), "cells": {"chat": {8: cell}}}
    return Record(**known | changes)


def kept(found: Record, **promise: Any) -> bool:
    return judge(found, [Promise(**promise)])[0][2]


def test_a_percentile_is_of_what_was_offered() -> None:
    fast = [10.0] * 90
    assert kept(record(fast, offered=90), p95_ms=100)
    assert kept(record(fast, offered=94), p95_ms=100)
    assert not kept(record(fast, offered=95), p95_ms=100)  # the 91st of them has no answer
    assert kept(record(fast, offered=100), p90_ms=100)
    assert not kept(record([], offered=0), p50_ms=100)


@pytest.mark.parametrize(("bound", "holds"), [(19.0, False), (21.0, True)])
def test_the_right_request_is_the_percentile(bound: float, holds: bool) -> None:
    latencies = [10.0] * 94 + [20.0] * 5 + [500.0]
    assert kept(record(latencies, offered=100), p95_ms=bound) == holds
    assert kept(record(latencies, offered=100), p90_ms=11)
    assert kept(record(latencies, offered=100), p99_ms=bound) == holds


def test_shares_count_what_was_not_answered() -> None:
    found = record([10.0] * 98 + [200.0], offered=100)
    assert kept(found, in_slo=0.98)
    assert not kept(found, in_slo=0.981)
    assert kept(found, answered=0.99)
    assert kept(found, failed=0.01)
    assert not kept(found, failed=0.009)
    assert kept(found, rejected=0)


def test_a_rate_may_miss_what_chance_explains() -> None:
    found = record([10.0] * 985, offered=985)  # 98.5 a second; three deviations of 100 are 9.5
    assert kept(found, offered_per_s=100)
    assert not kept(found, offered_per_s=109)
    assert not kept(found, answered_per_s=99)
    assert kept(found, tokens_per_s=985)


def test_streams_are_what_was_under_way_most_of_the_time() -> None:
    time_series = [Second(under_way=at) for at in (0, 32, 32, 32, 7)]
    assert kept(record([], offered=1, time_series=time_series), streams=32)
    assert not kept(record([], offered=1, time_series=time_series), streams=33)
    assert not kept(record([], offered=1), streams=1)


def test_a_promise_of_several_bounds_needs_them_all() -> None:
    found = record([10.0] * 10, offered=10)
    claim, said, held = judge(found, [Promise(p95_ms=20, tokens_per_s=1e6)])[0]
    assert claim == "p95 at most 20 ms, tokens back at least 1,000,000/s"
    assert said.endswith(" ms, 10/s")
    assert not held


def test_a_part_is_judged_alone(make_record) -> None:
    found = make_record()
    found.cells["chat"][32] = TenantLengthStats(offered=1)
    assert not kept(found, answered=1, tenant="chat", length=32)
    claim, said, _ = judge(found, [Promise(in_slo=0.5, tenant="chat", length=32)])[0]
    assert claim == "in time at least 50 %, of chat, of lengths up to 32"
    assert said == "0 %"


def test_streams_have_their_own_times(make_record) -> None:
    found = make_record(streams=True)
    assert kept(found, token_p95_ms=20)
    assert kept(found, first_p50_ms=50)
    assert not kept(found, first_p99_ms=1e6)  # more than one in a hundred was refused
    assert not kept(make_record(), token_p95_ms=1e6)


@pytest.mark.parametrize("wrong", [{}, {"tenant": "a"}, {"p95": 1}, {"p95_ms": 0}, {"in_slo": 99}])
def test_a_promise_of_nothing_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        Promise(**wrong)


def test_manual_names_everything_that_can_be_promised() -> None:
    manual = (Path(__file__).parents[2] / "docs" / "load-reports.md").read_text()
    names = [*Promise.model_fields, *PromiseFile.model_fields]
    assert [name for name in names if f"`{name}`" not in manual] == []


@pytest.mark.parametrize("path", sorted(SHIPPED.glob("*.yaml")), ids=lambda path: path.stem)
def test_files_that_ship_are_right(path: Path) -> None:
    assert Path(load_file(path).scenario).is_file()


def test_a_mistake_is_named_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "p.yaml"
    path.write_text("scenario: some.yaml\npromises:\n  - {p95ms: 3}\n")
    with pytest.raises(ScenarioErrors, match=r"p\.yaml:3: promises\[0\]\.p95ms: unknown"):
        load_file(path)


# ---- the commands --------------------------------------------------------------------------------


def smoke(tmp_path: Path, monkeypatch, found: Record, *more: str, **changes: Any):
    promised = PLAYED | {"url": "http://127.0.0.1:1", "promises": [{"in_slo": 0.9}]} | changes
    (tmp_path / "some.yaml").write_text(SCENARIO)
    (tmp_path / "p.yaml").write_text(json.dumps(promised))
    monkeypatch.setattr(command, "watched", lambda ready, quiet: found)
    files = ("--json", str(tmp_path / "r.json"), "--html", str(tmp_path / "r.html"))
    return CliRunner().invoke(main, ["smoke", str(tmp_path / "p.yaml"), *files, *more])


def test_kept_promises_are_fine(make_record, tmp_path, monkeypatch) -> None:
    done = smoke(tmp_path, monkeypatch, make_record())
    assert done.exit_code == 0, done.output
    assert "kept    in time at least 90 %: 91.94 %" in done.output
    assert load(tmp_path / "r.json").checks[0][2]
    assert "Every promise was kept (1)." in (tmp_path / "r.html").read_text()


def test_in_time_means_nothing_without_an_slo(make_record, tmp_path, monkeypatch) -> None:
    done = smoke(tmp_path, monkeypatch, make_record(), slo_ms=None)
    assert done.exit_code == 2
    assert "--slo-ms is missing" in done.output


def test_a_broken_promise_is_1(make_record, tmp_path, monkeypatch) -> None:
    done = smoke(tmp_path, monkeypatch, make_record(), promises=[{"in_slo": 1}, {"in_slo": 0.1}])
    assert done.exit_code == 1
    assert "BROKEN  in time at least 100 %" in done.output
    assert "kept    in time at least 10 %" in done.output


def test_a_run_that_does_not_count_is_1(make_record, tmp_path, monkeypatch) -> None:
    done = smoke(tmp_path, monkeypatch, make_record(client=Client(behind="it was late")))
    assert done.exit_code == 1
    assert "DOES NOT COUNT: it was late" in done.output


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"promises": [{"in_slo": 1, "tenant": "nobody"}]}, "is nobody; must be chat or crawl"),
        ({"promises": [{"in_slo": 1, "length": 9}]}, "promises[0].length: is 9; must be 32 or"),
        ({"promises": []}, "promises: "),
        ({"protocol": "gopher"}, "protocol: is gopher; must be oip or"),
        ({"url": ""}, "url: is missing"),
        ({"scenario": "none.yaml"}, "none.yaml: cannot be read"),
        ({"changes": ["duration_s=-1"]}, "duration_s"),
    ],
)
def test_a_wrong_file_is_2(make_record, tmp_path, monkeypatch, changes, said) -> None:
    done = smoke(tmp_path, monkeypatch, make_record(), **changes)
    assert done.exit_code == 2, done.output
    assert said in done.output


def test_two_records_are_compared(make_record, tmp_path) -> None:
    paths = [str(tmp_path / name) for name in ("a.json", "b.json", "c.html")]
    save(make_record(slower=2.0), Path(paths[0]))
    save(make_record(seed=2), Path(paths[1]))
    done = CliRunner().invoke(main, ["compare", *paths[:2], "--html", paths[2]])
    assert done.exit_code == 0, done.output
    assert "faster" in done.output
    assert "Latency of all" in Path(paths[2]).read_text()


def test_what_is_no_record_is_2(make_record, tmp_path) -> None:
    save(make_record(), tmp_path / "a.json")
    (tmp_path / "b.json").write_text("{}")
    done = CliRunner().invoke(main, ["compare", str(tmp_path / "a.json"), str(tmp_path / "b.json")])
    assert done.exit_code == 2
    assert "b.json: is no record" in done.output
