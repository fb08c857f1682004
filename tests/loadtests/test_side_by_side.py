"""Do rounds become the right figures, intervals and promises?"""

from math import inf
from xml.etree import ElementTree

import pytest

from loadtests.benches.compare import rounds as keeping
from loadtests.benches.compare.loads import LONG, LoadTrial, mix, noisy, trial_of
from loadtests.benches.compare.pictures import PERFECT, points_of
from loadtests.benches.compare.rounds import Round, search_of
from loadtests.benches.compare.shares import kept_shares, water_filled
from loadtests.benches.compare.tables import (
    goodput_table,
    interval,
    names_of,
    report,
    same_table,
    verdicts,
)
from loadtests.benches.compare.works import WORKS, cost_ms
from loadtests.client.player import PlayedRequest
from loadtests.traffic.plan import Planned

DEVICE = WORKS["device"]
SVG = "{http://www.w3.org/2000/svg}"


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


def test_refused_requests_count_as_the_second_that_they_were_waited_for():
    ends = [played(8, 0.01)] * 96 + [played(8, 0.001, 503)] * 3 + [played(300, 0.15)]
    found = trial_of(ends, 10.0, 0.1, 2.0)
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


def test_a_row_costs_its_part_of_a_full_batch():
    assert cost_ms(100) == pytest.approx(5 / 32 + 0.2 + 0.8)


def test_water_is_filled_up_to_what_is_wanted():
    assert water_filled({"a": 0.1, "b": 0.6, "c": 0.9}, 1.0) == {
        "a": 0.1,
        "b": pytest.approx(0.45),
        "c": pytest.approx(0.45),
    }
    assert water_filled({"a": 0.1}, 1.0) == {"a": 0.1}


def test_starved_long_rows_show_in_their_part():
    of = trial()
    starved = LoadTrial(
        *(of.rate, of.seconds, 300, 200, 1.0, 1.0),
        {"32": (100, 100), "128": (100, 100), "512": (100, 0)},
        *(of.statuses, 0.0, 0.0),
    )
    parts = {share.name: share.part for share in kept_shares(starved)}
    assert parts["256-512"] == 0
    assert parts["8-32"] > 0.9


def test_peaks_are_medians_and_intervals_span_all_rounds():
    rounds = [round_of("headrace", n, holds) for n, holds in enumerate((600.0, 700.0, 650.0))]
    rounds += [round_of("litserve", 0, 300.0), round_of("bentoml", 0, 310.0)]
    assert names_of(rounds) == ["headrace", "bentoml", "litserve"]
    assert interval(rounds[:3]) == "600–770"
    assert interval([round_of("x", 0, 1.0, fails=inf)]) == "1.00–?"
    table = goodput_table(rounds, DEVICE)
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


def test_the_picture_is_one_file_that_names_every_system():
    rounds = [round_of("headrace", 0, 700.0), round_of("litserve", 0, 300.0)]
    (found,) = report(rounds).pictures
    root = ElementTree.fromstring(found.svg)
    names = [each.text for each in root.iter(f"{SVG}text") if each.get("class") == "name"]
    assert names[1:] == ["headrace", "litserve", PERFECT]
    assert len(list(root.iter(f"{SVG}polyline"))) == 3
    assert "href" not in found.svg


def test_all_are_also_compared_at_the_same_rate():
    rounds = [round_of("headrace", 0, 700.0), round_of("litserve", 0, 90.0, same=trial(p99=1000.0))]
    table = same_table(rounds, DEVICE)
    assert table.rows[1][:4] == ("litserve", "100.0%", 500.0, "≥ 1,000")


def test_promises_name_the_best_peer_and_say_where_headrace_is_behind():
    rounds = [round_of("headrace", 0, 700.0), round_of("litserve", 0, 300.0)]
    rounds.append(round_of("triton", 0, 280.0, half=trial(140.0, cpu=0.3)))
    found = {verdict.claim: verdict for verdict in verdicts(rounds, DEVICE)}
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
    table = goodput_table(rounds, DEVICE)
    assert table.rows[0][9] == "800 (100%)"
    assert [verdict.held for verdict in verdicts(rounds, DEVICE)][:2] == [True, True]


def test_report_holds_without_peers_and_of_one_system():
    assert report([round_of("headrace", 0, 700.0)]).verdicts == ()
    assert "litserve" in str(report([round_of("litserve", 0, 300.0)]).tables)
