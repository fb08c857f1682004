"""Does a record count each try where it belongs, and do several processes' accounts add up?"""

import pytest

from loadtests.client.player import PlayedRequest
from loadtests.client.protocols.types import AnswerFacts
from loadtests.results.record import Client, Record
from loadtests.results.recorder import RecordingRules, RunRecorder, TokenLimits
from loadtests.traffic.plan import Planned

TERMS = RecordingRules({"a": 0.1, "b": None}, (32, 128), 10.0, 13.0)
HEAD = b"http/1.1 200 ok\r\nx-batch-size: 8\r\nx-queue-wait-ms: 2.5\r\nx-bucket: 32\r\n"


def played(at_s: float, latency_s: float = 0.05, **more) -> PlayedRequest:
    of = {name: more.pop(name) for name in ("attempt", "malformed") if name in more}
    planned = Planned(at_s, more.pop("tenant", "a"), more.pop("lengths", (8,)), **of)
    late_s = more.pop("late_s", 0.0)
    given = {"status": 200, "left_s": at_s + late_s, "taken_s": at_s + late_s}
    return PlayedRequest(planned, ended_s=at_s + latency_s, **given | more)


def kept(*tries: PlayedRequest) -> tuple[Record, RunRecorder]:
    recorder = RunRecorder(TERMS)
    for each in tries:
        recorder.ended(each)
    record = Record("x")
    recorder.fill(record, Client(), 3.0)
    return record, recorder


def test_only_the_measured_time_counts_by_when_a_request_was_meant_to_be_sent():
    record, _ = kept(played(9.9), played(10.0), played(12.99), played(13.0))
    assert record.total().offered == 2
    assert record.client.sent == 4


def test_in_time_is_within_the_tenants_limit():
    late = played(10, 0.11)
    record, _ = kept(played(10, 0.1), late, played(10, 5.0, tenant="b"), played(10, status=503))
    assert {name: cell.in_slo for name, cell in record.by_tenant().items()} == {"a": 1, "b": 1}
    assert record.total().latency.total == 3


def test_what_is_not_answered_is_told_by_its_reason():
    record, _ = kept(
        played(10, status=503),
        played(10, status=429, attempt=2),
        played(10, status=500),
        played(10, status=0, trouble="timeout"),
        played(10, trouble="cut off"),
    )
    total = record.total()
    assert total.reasons == {"503": 1, "429": 1, "500": 1, "timeout": 1, "cut off": 1}
    assert (total.rejected, total.retries, total.latency.total) == (2, 1, 0)
    assert (record.time_series[0].rejected, record.time_series[0].failed) == (2, 3)


def test_malformed_counts_apart():
    record, _ = kept(played(10, malformed=True, status=400), played(10))
    assert record.total().offered == 1
    assert record.malformed == {"400": 1}


@pytest.mark.parametrize(("length", "edge"), [(1, 32), (32, 32), (33, 128), (128, 128), (999, 128)])
def test_lengths_count_by_their_interval(length, edge):
    record, _ = kept(played(10, lengths=(1, length)))
    assert record.by_length()[edge].offered == 1


def test_answers_headers_tell_batches_padding_and_waits():
    record, _ = kept(played(10, head=HEAD), played(10, head=b"http/1.1 200 ok\r\nx-bucket: ?\r\n"))
    assert record.batch_sizes == {8: 1}
    assert (record.tokens, record.padded_tokens) == (16, 40)
    assert record.total().wait.max_s == 0.0025


def test_streams_tell_their_tokens():
    record, _ = kept(played(10, 1.0, heard=AnswerFacts(10.2, 10.9, 8)))
    total = record.total()
    assert total.tokens_out == 8
    assert total.first.max_s == pytest.approx(0.2)
    assert total.per_token.max_s == pytest.approx(0.1)


def test_seconds_say_what_was_under_way_at_their_end():
    record, _ = kept(played(9.5, 1.6), played(10.2, 2.0), played(11.1, 0.1))
    assert [second.under_way for second in record.time_series] == [2, 1, 0]
    assert [second.answered for second in record.time_series] == [0, 2, 1]
    assert [second.offered for second in record.time_series] == [1, 1, 0]


def test_what_was_answered_in_the_warm_up_is_in_no_second():
    record, _ = kept(played(9.1), played(9.5), played(10.0))
    assert [second.answered for second in record.time_series] == [1, 0, 0]


def test_accounts_of_processes_add_up():
    tries = [played(10 + n / 10, 0.01 * n, head=HEAD, lengths=(n + 1,)) for n in range(25)]
    whole, _ = kept(*tries)
    (_, one), (_, other) = kept(*tries[::2]), kept(*tries[1::2])
    one.merge(other)
    record = Record("x")
    one.fill(record, Client(), 3.0)
    assert record == whole


@pytest.mark.parametrize(
    ("late_s", "left_s", "cpu", "full", "said"),
    [
        (0.004, 0.004, 0.5, 0, ""),
        (0.006, 0.006, 0.5, 0, "fell behind"),
        (0.0, 0.0, 0.95, 0, "95% busy"),
        (0.0, 0.5, 0.5, 64, "all 64 connections"),
        (0.0, 0.5, 0.5, 0, ""),
    ],
)
def test_run_does_not_count_where_the_generator_fell_behind(late_s, left_s, cpu, full, said):
    _, recorder = kept(played(10, 1.0, taken_s=10 + late_s, left_s=10 + left_s))
    assert said in recorder.behind(0.1, cpu, full) if said else not recorder.behind(0.1, cpu, full)


LIMITS = TokenLimits(first_s=0.5, each_s=0.02)


@pytest.mark.parametrize(
    ("first_s", "last_s", "tokens", "in_time"),
    [
        (10.5, 10.7, 11, True),
        (10.51, 10.6, 11, False),
        (10.1, 10.31, 11, False),
        (10.1, 10.1, 1, True),
        (None, None, 0, False),
    ],
)
def test_a_stream_is_in_time_if_its_first_and_its_further_tokens_are(
    first_s: float | None, last_s: float | None, tokens: int, in_time: bool
) -> None:
    heard = AnswerFacts(first_s, last_s, tokens)
    assert LIMITS.kept(heard, 10.0, 9.0, streams=True) is in_time


@pytest.mark.parametrize(("latency_s", "in_time"), [(0.7, True), (0.71, False)])
def test_an_answer_that_is_not_streamed_has_the_time_that_both_give_it(
    latency_s: float, in_time: bool
) -> None:
    heard = AnswerFacts(tokens_out=11)
    assert LIMITS.kept(heard, 10.0, latency_s, streams=False) is in_time


def test_limits_of_tokens_are_for_answers_that_have_some() -> None:
    assert LIMITS.kept(None, 10.0, 9.0, streams=True)
    assert TokenLimits().kept(AnswerFacts(), 10.0, 9.0, streams=True)
    assert not TokenLimits()
    assert LIMITS.words() == "a first token within 500 ms and further ones every 20 ms"


def test_in_time_counts_both_promises() -> None:
    recorder = RunRecorder(RecordingRules({"a": None}, (32,), 10.0, 13.0, LIMITS))
    recorder.ended(played(10, 2.0, heard=AnswerFacts(10.4, 10.5, 11)))
    recorder.ended(played(10, 2.0, heard=AnswerFacts(10.6, 10.7, 11)))
    record = Record("x")
    recorder.fill(record, Client(), 3.0)
    assert (record.total().in_slo, record.total().offered) == (1, 2)
