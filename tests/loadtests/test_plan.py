"""Are the requests of a scenario what it says, and the same for the same seed?"""

import random
import statistics
from collections import Counter
from dataclasses import replace
from itertools import islice, pairwise
from pathlib import Path

import pytest

from loadtests.traffic.plan import PlanPart, TrafficPlan, length_drawer, rates_of
from loadtests.traffic.scenario_file import check
from loadtests.traffic.scenario_traffic import ArrivalsPart, LengthsPart
from loadtests.traffic.traces import TraceError
from loadtests.traffic.workload import (
    changing_rates,
    intervals,
    pause_s,
    renewal_times,
    weibull_shape,
)

HERE = Path()


def poisson():
    return intervals("poisson", 1.0, random.Random(1))


def plan(gateways=1, **changed) -> TrafficPlan:
    plain = {"settings": "x", "duration_s": 20, "arrivals": {"rate": 100}, "lengths": {"fixed": 8}}
    return TrafficPlan(check(plain | changed), HERE, gateways)


def test_requests_ascend_at_their_rate_from_the_warm_up_on():
    times = [each.at_s for each in plan(warmup_s=10).requests()]
    assert times == sorted(times)
    assert times[-1] < 30
    assert len(times) == pytest.approx(3000, rel=0.1)


def test_same_seed_makes_the_same_requests_and_another_others():
    first, again, other = (list(plan(seed=seed).requests()) for seed in (1, 1, 2))
    assert first == again != other


def test_what_one_tenant_sends_does_not_hang_on_the_others():
    alone = plan(tenants={"a": {"arrivals": {"rate": 5}}})
    beside = plan(tenants={"b": {"arrivals": {"rate": 90}}, "a": {"arrivals": {"rate": 5}}})
    found = [[each for each in p.requests() if each.tenant == "a"] for p in (alone, beside)]
    assert found[0] == found[1] != []


def test_tenants_get_their_shares_of_the_arrivals():
    found = Counter(each.tenant for each in plan(tenants={"a": {"share": 3}, "b": {}}).requests())
    assert found["a"] / found["b"] == pytest.approx(3, rel=0.2)


def test_gateways_are_chosen_by_the_tenants_shares_else_evenly():
    tenants = {"a": {"gateways": [0, 1]}, "b": {}, "c": {"gateways": [9, 1]}}
    found = Counter((e.tenant, e.gateway) for e in plan(2, tenants=tenants).requests())
    assert found["a", 0] == 0 < found["a", 1]
    assert found["b", 0] / found["b", 1] == pytest.approx(1, rel=0.3)
    assert found["c", 0] > 4 * found["c", 1]


def test_rows_and_sessions_are_the_tenants():
    (first, *rest) = plan(tenants={"a": {"rows": 3, "sessions": 2}}).requests()
    assert first.lengths == (8, 8, 8)
    assert {each.session for each in rest} == {"a-0", "a-1"}


def test_closed_loop_sends_once_a_client_and_then_after_each_end():
    loop = plan(arrivals={"process": "closed", "clients": 4, "think_s": 0.5})
    first = list(loop.requests())
    assert [each.at_s for each in first] == [0.0] * 4
    following = loop.next_in_loop(first[0], 7.0)
    assert following is not None
    assert following.at_s == 7.5
    assert loop.next_in_loop(first[0], 19.6) is None


def test_open_loop_is_not_followed():
    some = plan()
    assert some.next_in_loop(next(some.requests()), 1.0) is None


def test_refused_caller_comes_again_as_often_as_it_tries():
    some = plan(tenants={"a": {"retry": {"attempts": 3, "backoff_ms": 100, "jitter": False}}})
    first = next(some.requests())
    second = some.again(first, 1.0, 0.0)
    assert (second.at_s, second.attempt) == (1.1, 2)
    third = some.again(second, 2.0, 0.0)
    assert (third.at_s, third.attempt, third.lengths) == (2.2, 3, first.lengths)
    assert some.again(third, 3.0, 0.0) is None


@pytest.mark.parametrize(("honours", "at_s"), [(True, 6.1), (False, 1.1)])
def test_retry_after_is_waited_for_by_those_who_look_at_it(honours, at_s):
    retry = {"attempts": 2, "jitter": False, "retry_after": honours}
    some = plan(tenants={"a": {"retry": retry}})
    assert some.again(next(some.requests()), 1.0, 5.0).at_s == at_s


def test_pauses_double_up_to_the_longest_and_are_drawn_below():
    assert [pause_s(n, 0.1, 0.5, 0.0, None) for n in (1, 2, 3, 4, 9)] == [0.1, 0.2, 0.4, 0.5, 0.5]
    drawn = [pause_s(3, 0.1, 0.5, 0.0, random.Random(n)) for n in range(200)]
    assert 0.0 <= min(drawn) < 0.05 < 0.35 < max(drawn) <= 0.4


@pytest.mark.parametrize(
    ("process", "cv"),
    [("gamma", 0.5), ("gamma", 1.0), ("gamma", 3.0), ("weibull", 0.5), ("weibull", 3.0)],
)
def test_intervals_have_their_mean_and_variation(process, cv):
    draw = intervals(process, cv, random.Random(1))
    times = list(renewal_times([(0.0, 100.0)], 300.0, draw))
    gaps = [b - a for a, b in pairwise(times)]
    assert statistics.mean(gaps) == pytest.approx(0.01, rel=0.1)
    assert statistics.pstdev(gaps) / statistics.mean(gaps) == pytest.approx(cv, rel=0.1)


def test_constant_arrivals_come_at_equal_intervals():
    times = [each.at_s for each in plan(arrivals={"process": "constant", "rate": 4}).requests()]
    assert times[:3] == [0.25, 0.5, 0.75]
    assert len(times) == 79


def test_weibull_of_variation_one_is_exponential():
    assert weibull_shape(1.0) == pytest.approx(1.0)


def test_sources_add_up():
    alone = plan(arrivals={"rate": 100})
    more = {"rate": 100, "plus": [{"process": "constant", "rate": 10}, {"rate": 40}]}
    both = plan(arrivals=more)
    first, sum_ = [[e.at_s for e in p.requests()] for p in (alone, both)]
    assert sum_ == sorted(sum_)
    assert set(first) < set(sum_)
    assert len(sum_) == pytest.approx(20 * 150, rel=0.1)


def test_ramp_sends_as_many_as_a_straight_line_would():
    ramp = {"rate": 0, "steps": [{"from_s": 5, "rate": 200, "ramp_s": 10}]}
    counts = Counter(int(e.at_s // 5) for e in plan(arrivals=ramp).requests())
    assert [counts[n] for n in range(4)] == pytest.approx([0, 250, 750, 1000], rel=0.15)


@pytest.mark.parametrize("parts", [1, 2, 3])
def test_parts_make_the_whole_plan(parts):
    whole = list(plan(tenants={"a": {}, "b": {"rows": 2}}).requests())
    scenario = plan(tenants={"a": {}, "b": {"rows": 2}}).scenario
    found = [
        list(TrafficPlan(scenario, HERE, part=PlanPart(n, parts)).requests()) for n in range(parts)
    ]
    assert sorted((e for part in found for e in part), key=lambda e: e.at_s) == whole
    assert max(map(len, found)) - min(map(len, found)) <= 1


def test_callers_leave_and_send_malformed_by_share():
    tenants = {"a": {"leave_after_ms": 50, "leave_share": 0.25, "malformed": 0.1}}
    found = list(plan(tenants=tenants).requests())
    assert Counter(e.leave_s for e in found)[0.05] / len(found) == pytest.approx(0.25, rel=0.15)
    assert sum(e.malformed for e in found) / len(found) == pytest.approx(0.1, rel=0.25)
    plain = [(e.at_s, e.lengths) for e in plan(tenants={"a": {}}).requests()]
    assert [(e.at_s, e.lengths) for e in found] == plain


def test_generations_ask_for_tokens():
    found = plan(output={"fixed": 40}, tenants={"a": {}, "b": {"output": {"fixed": 7}}})
    assert {(e.tenant, e.output) for e in found.requests()} == {("a", 40), ("b", 7)}


def test_rate_changes_at_once_and_may_be_none():
    rates = [(0.0, 100.0), (10.0, 0.0), (20.0, 1000.0)]
    times = list(renewal_times(rates, 30.0, poisson()))
    counts = Counter(int(at // 10) for at in times)
    assert counts[0] == pytest.approx(1000, rel=0.15)
    assert counts[1] == 0
    assert counts[2] == pytest.approx(10_000, rel=0.05)
    assert len([at for at in times if 20 <= at < 20.1]) > 60


def test_no_arrivals_without_a_rate():
    assert list(renewal_times([(0.0, 0.0)], 10.0, poisson())) == []


def test_bursts_multiply_what_steps_say():
    rates = changing_rates([(0.0, 10.0, 0.0), (4.0, 20.0, 0.0)], [(2.0, 5.0)], 3.0)
    assert rates == [(0.0, 10.0), (2.0, 30.0), (4.0, 60.0), (5.0, 20.0)]


def test_moments_count_from_the_end_of_the_warm_up():
    arrivals = ArrivalsPart(
        rate=10,
        steps=[{"from_s": 1, "rate": 20}],
        bursts={"every_s": 10, "last_s": 1, "factor": 2, "first_s": 3},
    )
    assert rates_of(arrivals, 0.5, 5.0, 20.0) == [
        (0.0, 5.0), (6.0, 10.0), (8.0, 20.0), (9.0, 10.0), (18.0, 20.0), (19.0, 10.0)
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("lengths", "mean"),
    [
        ({"fixed": 7}, 7),
        ({"bands": [{"share": 3, "low": 10, "high": 10}, {"share": 1, "low": 50, "high": 50}]}, 20),
        ({"lognormal": {"mu": 3.0, "sigma": 0.1}}, 20.2),
        ({"exponential": {"mean": 100}}, 100),
        ({"exponential": {"mean": 100}, "at_most": 50, "at_least": 50}, 50),
    ],
)
def test_lengths_have_their_mean(lengths, mean):
    draw, rng = length_drawer(LengthsPart(**lengths)), random.Random(1)
    assert statistics.mean(draw(rng) for _ in range(4000)) == pytest.approx(mean, rel=0.06)


def test_lengths_may_be_counted_ones_of_a_list_or_a_file(tmp_path):
    (tmp_path / "seen.csv").write_text("id,tokens\na,5\nb,9\nc,9\nd,9\n")
    of_file = {"empirical": {"file": "seen.csv", "column": "tokens"}}
    of_list = {"empirical": {"lengths": [5, 9], "counts": [1, 3]}}
    for lengths in (of_file, of_list):
        draw, rng = length_drawer(LengthsPart(**lengths), tmp_path), random.Random(1)
        found = Counter(draw(rng) for _ in range(2000))
        assert set(found) == {5, 9}
        assert found[9] / found[5] == pytest.approx(3, rel=0.2)


def test_lengths_are_at_least_one_and_cut():
    draw = length_drawer(LengthsPart(lognormal={"mu": 1.0, "sigma": 3.0}, at_most=9, at_least=2))
    found = {draw(rng) for rng in map(random.Random, range(300))}
    assert (min(found), max(found)) == (2, 9)


@pytest.fixture
def trace(tmp_path):
    file = tmp_path / "trace.csv"
    file.write_text(
        "TIMESTAMP,ContextTokens,Other\n2023-11-16 18:15:46.6805900,374,1\n"
        "2023-11-16 18:15:50.6805900,396,2\n2023-11-16 18:15:49.0,5,3\n"
    )
    return file


def traced(file, **changed):
    arrivals = {"process": "trace", "file": str(file)}
    return plan(arrivals=arrivals | changed.pop("arrivals", {}), **changed)


def test_trace_is_replayed_from_its_first_row_with_its_lengths(trace):
    found = [(e.at_s, e.lengths) for e in traced(trace, lengths={"column": ""}).requests()]
    assert found == [(0.0, (374,)), (4.0, (396,)), (4.0, (5,))]


def test_trace_may_be_replayed_faster_cut_and_by_other_columns(trace):
    lengths = {"column": "Other", "at_most": 2}
    found = traced(trace, arrivals={"speed": 2.0}, lengths=lengths).requests()
    assert [(e.at_s, e.lengths) for e in found] == [(0.0, (1,)), (2.0, (2,)), (2.0, (2,))]


def test_trace_ends_with_the_run(trace):
    assert len(list(traced(trace, duration_s=3).requests())) == 1


def test_tenants_part_a_trace_without_losing_a_row(tmp_path):
    file = tmp_path / "trace.jsonl"
    file.write_text("".join(f'{{"at": {n / 100}, "tokens": {n + 1}}}\n' for n in range(400)))
    tenants = {"a": {"share": 3}, "b": {}}
    found = list(traced(file, lengths={"column": ""}, tenants=tenants).requests())
    assert sorted(e.lengths[0] for e in found) == list(range(1, 401))
    assert Counter(e.tenant for e in found)["a"] == pytest.approx(300, rel=0.1)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a,b\n1,x\n", ":2: 'x' is no length"),
        ("a,b\n1,2\nnan,2\n", ":3: 'nan' is no time"),
        ("a,b\ninf,2\n", ":2: 'inf' is no time"),
        ("a,b\n2024-13-01,2\n", ":2: '2024-13-01' is no time"),
        ("a,b\n1," + "9" * 5000, ":2: '9999"),
        ("a,b\n1", ":2: 'None' is no length"),
        ('a,b\n1,"' + "x" * 200_000, ":2: has too few columns"),
        ("a,b\n", "has no rows"),
        ("a\n1\n", ":2: has too few columns"),
    ],
)
def test_trace_that_cannot_be_read_says_where(tmp_path, text, said):
    file = tmp_path / "trace.csv"
    file.write_text(text)
    with pytest.raises(ValueError, match=said):
        list(traced(file, lengths={"column": ""}).requests())


def test_requests_are_made_one_by_one():
    endless = plan(duration_s=1e7, arrivals={"rate": 1e6})
    assert len(list(islice(endless.requests(), 5))) == 5


def test_request_is_a_value():
    first = next(plan().requests())
    assert replace(first, attempt=2) != first


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("rubbish", ":1: has too few columns"),
        ("[" * 100_000, ":1: has too few columns"),
        ('{"at": 0, "tokens": 1e400}', ":1: 'inf' is no length"),
        ('{"at": NaN, "tokens": 1}', ":1: 'nan' is no time"),
        ('{"at": null, "tokens": 1}', ":1: 'None' is no time"),
        ('{"at": 0, "tokens": ' + "9" * 6000 + "}", ":1: has too few columns"),
    ],
)
def test_malformed_among_recorded_objects_says_where(tmp_path, line, said):
    file = tmp_path / "trace.jsonl"
    file.write_text(line + "\n")
    with pytest.raises(TraceError, match=said):
        list(traced(file, lengths={"column": ""}).requests())


FORMATS = {
    "azure.csv": "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.68,374,44\n"
    "2023-11-16 18:15:48.68,396,109\n",
    "burstgpt.csv": "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
    "5,ChatGPT,374,44,418,Conversation log\n7,GPT-4,396,109,505,API log\n",
    "sessions.csv": "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens\n"
    "5,1,0.3,ChatGPT,374,44\n7,2,0.2,GPT-4,396,109\n",
    "mooncake.jsonl": '{"timestamp": 27000, "input_length": 374, "output_length": 44, '
    '"hash_ids": [1, 2]}\n{"timestamp": 29000, "input_length": 396, "output_length": 109}\n',
    "own.csv": "seconds,length,output\n0,374,44\n2.0,396,109\n",
}


@pytest.mark.parametrize("name", FORMATS)
def test_known_recordings_need_no_columns_named(tmp_path, name):
    (tmp_path / name).write_text(FORMATS[name])
    arrivals = {"process": "trace", "file": str(tmp_path / name), "smear_s": 0}
    found = plan(arrivals=arrivals, lengths={"column": ""}, output={"column": ""}).requests()
    assert [(e.at_s, e.lengths[0], e.output) for e in found] == [(0.0, 374, 44), (2.0, 396, 109)]


def test_what_was_recorded_in_one_second_is_smeared_over_it(tmp_path):
    rows = "".join(f"{n // 100},m,{n + 1},1,1,x\n" for n in range(400))
    header = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
    (tmp_path / "burstgpt.csv").write_text(header + rows)
    found = list(traced(tmp_path / "burstgpt.csv", lengths={"column": ""}).requests())
    times = [each.at_s for each in found]
    assert times == sorted(times)
    assert len(set(times)) == 400
    assert all((e.lengths[0] - 1) // 100 == int(e.at_s) for e in found)


def test_answers_lengths_that_were_not_recorded_are_missed(tmp_path):
    (tmp_path / "two.csv").write_text("seconds,length\n0,5\n")
    with pytest.raises(TraceError, match=":2: has too few columns"):
        list(traced(tmp_path / "two.csv", output={"column": ""}).requests())
