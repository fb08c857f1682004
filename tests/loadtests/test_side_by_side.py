"""Do rounds become the right figures, intervals and promises?"""

from math import inf

import pytest

from loadtests.benches.compare import __main__ as comparison
from loadtests.benches.compare import rounds as keeping
from loadtests.benches.compare.rounds import LONG, LoadTrial, Round, mix, noisy, search_of, trial_of
from loadtests.benches.compare.systems import WORKS
from loadtests.benches.compare.tables import interval, kept_shares, points_of, rounds_of
from loadtests.benches.played import Played
from loadtests.benches.runner import BenchRun, Runs
from loadtests.benches.server import ServerTrouble
from loadtests.client.player import PlayedRequest
from loadtests.traffic.plan import Planned

DEVICE = WORKS["device"]


def played(length, latency_s, status=200, late_s=0.0):
    planned = Planned(1.0, "default", (length,))
    return PlayedRequest(planned, 1.0 + late_s, 1.0 + latency_s, status)


def trial(rate=100.0, share=1.0, p99=50.0, cpu=1.0):
    count = int(rate * 10)
    kept = int(count * share)
    by_length = {"32": (count, kept), "128": (0, 0), "512": (0, 0)}
    return LoadTrial(rate, 10.0, count, kept, p99 / 2, p99, by_length, {"200": count}, 1.0, cpu)


def round_of(system, number, holds, **changes):
    over = {times: trial(holds * float(times), 1 / float(times)) for times in ("1.5", "2", "3")}
    found = {
        "work": "device",
        "system": system,
        "number": number,
        "holds": holds,
        "fails": holds * 1.1,
        "peak": holds,
        "searched": ((holds, 1.0),),
        "half": trial(holds / 2),
        "same": trial(),
        "over": over,
        "victim": trial(98.0),
    }
    return Round(**found | changes)


def report(rounds):
    runs = Runs(BenchRun(each.system, each, each.work) for each in rounds)
    return comparison.BENCH.report(runs, comparison.BENCH.parser().parse_args([]))


def of(rounds):
    return rounds_of(Runs(BenchRun(each.system, each, each.work) for each in rounds), DEVICE)


def test_refused_requests_count_as_the_second_that_they_were_waited_for():
    ends = [played(8, 0.01)] * 96 + [played(8, 0.001, 503)] * 3 + [played(300, 0.15)]
    cpu_s = {"client": 9.0, "host": 0.1}
    found = trial_of(Played(ends, 10.0, 0.1, cpu_s, tries=100))
    assert found.cpu_ms == pytest.approx(1.0)
    assert (found.offered, found.in_time, found.share) == (100, 96, 0.96)
    assert found.by_length == {"32": (99, 96), "128": (0, 0), "512": (1, 0)}
    assert found.p50_ms == pytest.approx(10)
    assert found.p99_ms == pytest.approx(1000)
    assert found.statuses == {"200": 97, "503": 3}


def test_the_neighbour_sends_long_rows_and_the_victim_the_mix():
    scenario = noisy(98, 290, 6.0, seed=3)
    assert scenario.tenants["noisy"].lengths.bands[0].low == 256
    assert scenario.tenants["victim"].lengths is None
    assert len(scenario.lengths.bands) == 3
    assert mix(50, 6.0, seed=3).tenants["default"].arrivals.rate == 50
    assert LONG["bands"][0]["high"] == 512


def test_later_searches_look_around_the_peak_so_far():
    assert search_of(DEVICE, []).low == DEVICE.start_rate
    asked = search_of(DEVICE, [round_of("x", 0, 200.0), round_of("x", 1, 220.0)])
    assert asked.low < 210 < asked.high


def test_starved_long_rows_show_in_their_part():
    by_length = {"32": (100, 100), "128": (100, 100), "512": (100, 0)}
    starved = LoadTrial(100.0, 10.0, 300, 200, 1.0, 1.0, by_length, {}, 0.0, 0.0)
    parts = {share.name: share.part for share in kept_shares(starved)}
    assert parts["256-512"] == 0
    assert parts["8-32"] > 0.9


def test_peaks_are_medians_and_intervals_span_all_rounds():
    rounds = [round_of("headrace", n, holds) for n, holds in enumerate((600.0, 700.0, 650.0))]
    rounds += [round_of("litserve", 0, 300.0), round_of("bentoml", 0, 310.0)]
    found = of(rounds)
    assert list(found) == ["headrace", "bentoml", "litserve"]
    assert interval(found["headrace"]) == "600–770"
    assert interval(of([round_of("x", 0, 1.0, fails=inf)])["x"]) == "1.00–?"
    table = report(rounds).tables[0]
    first, second = table.rows[0], table.rows[1]
    assert first[:3] == ("headrace", 32, 650.0)
    assert second[4] == pytest.approx(650 / 310)
    assert len(first) == len(table.headers)


def test_a_line_goes_through_all_that_was_tried_and_rates_alike_are_one_point():
    rounds = [round_of("headrace", n, holds) for n, holds in enumerate((700.0, 704.0))]
    points = points_of(rounds)
    assert [round(x) for x, _ in points] == [100, 351, 702, 1053, 1404, 2106]
    assert points[2][1] == pytest.approx(702)
    assert points[-1][1] == pytest.approx(702, rel=0.01)


def test_all_are_also_compared_at_the_same_rate():
    rounds = [round_of("headrace", 0, 700.0), round_of("litserve", 0, 90.0, same=trial(p99=1000.0))]
    table = report(rounds).tables[1]
    assert table.rows[1][:4] == ("litserve", "100.0%", 500.0, "≥ 1,000")


def test_promises_name_the_best_peer_and_say_where_headrace_is_behind():
    rounds = [round_of("headrace", 0, 700.0), round_of("litserve", 0, 300.0)]
    rounds.append(round_of("triton", 0, 280.0, half=trial(140.0, cpu=0.3)))
    found = {verdict.claim: verdict for verdict in report(rounds).verdicts}
    assert found["goodput at least 2.3 × the best peer's (litserve)"].held
    cpu = found["CPU a request below every peer's"]
    assert not cpu.held
    assert "(triton)" in cpu.measured
    assert found["at 3 × its peak at least 95 % of it in time"].held


def test_rounds_outlive_the_run(tmp_path):
    rounds = [round_of("litserve@4", 1, 300.0, fails=inf), round_of("headrace", 0, 700.0)]
    for each in rounds:
        keeping.keep(each, tmp_path)
    assert sorted(keeping.kept(tmp_path), key=lambda each: each.holds) == rounds
    keeping.forget(["minilm"], tmp_path)
    assert len(keeping.kept(tmp_path)) == 2
    keeping.forget(["device"], tmp_path)
    assert keeping.kept(tmp_path) == []


def test_rounds_without_overload_leave_its_medians_alone():
    rounds = [round_of("headrace", 0, 800.0), round_of("litserve", 0, 300.0)]
    rounds.append(round_of("headrace", 2, 800.0, over={}, victim=None))
    found = report(rounds)
    assert found.tables[0].rows[0][9] == "800 (100%)"
    assert [verdict.held for verdict in found.verdicts][:2] == [True, True]


def test_report_holds_without_peers_and_of_one_system():
    assert report([round_of("headrace", 0, 700.0)]).verdicts == ()
    assert "litserve" in str(report([round_of("litserve", 0, 300.0)]).tables)


def test_systems_take_turns_and_one_that_does_not_start_is_left_out(tmp_path, monkeypatch):
    tried = []

    def played_round(system, work, number, before, seconds, multiples):
        tried.append((system.name, number, len(before), seconds))
        if system.name == "triton":
            raise ServerTrouble("triton ended with 1:\nno library")
        return round_of(system.name, number, 700.0 if system.name == "headrace" else 300.0)

    monkeypatch.setattr(keeping.keep, "__defaults__", (tmp_path,))
    monkeypatch.setattr(keeping.kept, "__defaults__", (tmp_path,))
    monkeypatch.setattr(keeping.forget, "__defaults__", (tmp_path,))
    monkeypatch.setattr(comparison, "round_of", played_round)
    line = ["--systems", "headrace", "litserve", "triton", "--repeats", "2"]
    options = comparison.BENCH.parser().parse_args(line)
    found = comparison.BENCH.report(Runs(comparison.BENCH.told(options)), options)
    assert [name for name, *_ in tried] == [
        "headrace", "litserve", "triton", "litserve", "headrace"
    ]  # fmt: skip
    assert tried[-1][1:] == (1, 1, 5.0)
    assert found.notes[-1] == "`triton` was left out of `device`: no library."
    assert found.tables[0].rows[0][:3] == ("headrace", 32, 700.0)
    again = comparison.BENCH.parser().parse_args(["--report-only"])
    assert len(list(comparison.runs(again))) == 4
