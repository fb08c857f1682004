"""Log lines: one object each, known fields only, few of them in a flood; their way to the host."""

from __future__ import annotations

import builtins
import io
import json
import logging
import queue
import re
import sys
from dataclasses import replace

import pytest

from deployments.gateway.telemetry.gateway_telemetry import AccessLine, AccessLog
from deployments.gateway.tenancy.tenants import new_key
from deployments.process import logs

LINE = AccessLine("id-1", "POST", "/v1/embeddings", 503, "shed", "queue_full", "m", "acme", 1.23456)


@pytest.fixture
def written():
    """(configure, read lines); the logger is left as it was found."""
    logger, stream = logging.getLogger(logs.ROOT), io.StringIO()
    before = logger.handlers[:], logger.level, logger.propagate

    def configure(form="json", level="info"):
        logs.configure(level, form, stream)

    yield configure, lambda: stream.getvalue().splitlines()
    logger.handlers[:], logger.level, logger.propagate = before


def test_a_line_is_one_json_object_with_time_level_logger_message_and_fields(written):
    configure, lines = written
    configure()
    logging.getLogger("headrace.x").info("hello %s", "you", extra={"model": "m", "rows": 3})
    (line,) = [json.loads(text) for text in lines()]
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", line.pop("ts"))
    assert line == {
        "level": "info", "logger": "headrace.x", "message": "hello you", "model": "m", "rows": 3,
    }  # fmt: skip


def test_an_extra_that_is_no_known_field_is_never_written(written):
    configure, lines = written
    configure()
    extra = {"body": "secret", "authorization": "Bearer secret", "key": "hr_secret", "tenant": "a"}
    logging.getLogger("headrace.x").info("hello", extra=extra)
    assert "secret" not in lines()[0]
    assert json.loads(lines()[0])["tenant"] == "a"


@pytest.mark.parametrize("form", ["json", "text"])
def test_an_exception_comes_with_its_line(written, form):
    configure, lines = written
    configure(form)
    try:
        raise ValueError("broken")
    except ValueError:
        logging.getLogger("headrace.x").exception("failed")
    if form == "json":
        (line,) = lines()
        assert json.loads(line)["exception"].endswith("ValueError: broken")
    else:
        assert lines()[-1] == "ValueError: broken"


@pytest.mark.parametrize("form", ["json", "text"])
def test_what_a_caller_wrote_cannot_forge_a_second_line(written, form):
    configure, lines = written
    configure(form)
    logging.getLogger("headrace.x").info("a\nb", extra={"path": "/x\n{}\r\x1b[31m", "rows": 1})
    (line,) = lines()
    assert "\x1b" not in line


def test_surrogates_and_long_messages_do_not_break_a_line(written):
    configure, lines = written
    configure()
    logging.getLogger("headrace.x").info("\ud800" + "x" * 100_000, extra={"path": "\udfff"})
    (line,) = lines()
    assert len(line) < 10_000
    assert json.loads(line)["path"] == "\\udfff"


def test_text_lines_name_their_fields(written):
    configure, lines = written
    configure("text")
    logging.getLogger("headrace.x").warning("naïve", extra={"model": "m", "tenant": ""})
    assert lines()[0].endswith("Z warning headrace.x naïve model=m")


def test_lines_below_the_level_are_left_out(written):
    configure, lines = written
    configure(level="warning")
    logging.getLogger("headrace.x").info("no")
    logging.getLogger("headrace.x").warning("yes")
    assert [json.loads(line)["message"] for line in lines()] == ["yes"]


def test_configuring_twice_writes_once(written):
    configure, lines = written
    configure()
    configure()
    logging.getLogger("headrace.x").info("once")
    assert len(lines()) == 1


@pytest.mark.parametrize(("status", "wanted"), [(200, False), (404, False), (499, False)])
def test_answers_and_callers_mistakes_get_no_line(status, wanted):
    assert AccessLog().wants(status, 0.0) is wanted


@pytest.mark.parametrize(("least", "status", "wanted"), [(0, 200, True), (400, 404, True),
                                                        (600, 503, False)])  # fmt: skip
def test_the_least_status_that_gets_a_line_can_be_set(least, status, wanted):
    assert AccessLog(min_status=least).wants(status, 0.0) is wanted


@pytest.mark.parametrize(("refused", "expected"), [(0, 0), (1, 1), (2, 2), (10, 10), (11, 10)])
def test_a_flood_gets_at_most_ten_lines_a_second(refused, expected):
    access = AccessLog(max_per_s=10)
    assert sum(access.wants(503, 7.0 + i / 100) for i in range(refused)) == expected
    assert access.wants(503, 8.0)


@pytest.mark.parametrize("status", [401, 403, 429])
def test_who_was_not_let_in_gets_a_line(status):
    assert AccessLog().wants(status, 0.0)
    assert not AccessLog(min_status=600).wants(status, 0.0)


def test_a_flood_of_those_who_are_not_let_in_hides_no_failure():
    access = AccessLog(max_per_s=2)
    assert [access.wants(401, 0.0) for _ in range(3)] == [True, True, False]
    assert [access.wants(503, 0.0) for _ in range(3)] == [True, True, False]


def test_a_line_says_how_many_were_left_out_before_it(written):
    configure, lines = written
    configure()
    access = AccessLog(max_per_s=1)
    for now in (0.0, 0.1, 0.2, 1.0, 2.0):
        if access.wants(503, now):
            access.write(LINE)
    assert [json.loads(line).get("suppressed") for line in lines()] == [None, 2, None]


def test_what_was_left_out_at_the_end_of_a_flood_is_said_later(written):
    configure, lines = written
    configure()
    access = AccessLog(max_per_s=0)
    access.wants(503, 0.0)
    access.settle(0.5)
    assert lines() == []
    access.settle(1.0)
    access.settle(2.0)
    assert [json.loads(line)["suppressed"] for line in lines()] == [1]


def test_an_access_line_carries_its_requests_fields(written):
    configure, lines = written
    configure()
    AccessLog().write(LINE)
    line = json.loads(lines()[0])
    del line["ts"]
    assert line == {
        "level": "warning", "logger": "headrace.access", "message": "POST /v1/embeddings 503",
        "request_id": "id-1", "method": "POST", "path": "/v1/embeddings", "status": 503,
        "outcome": "shed", "reason": "queue_full", "model": "m", "tenant": "acme",
        "total_ms": 1.235,
    }  # fmt: skip


def test_a_key_is_cut_out_of_a_path(written):
    configure, lines = written
    configure()
    key, _ = new_key()
    AccessLog().write(replace(LINE, path=f"/v2/models/{key}/infer"))
    assert json.loads(lines()[0])["path"] == "/v2/models/hr_…/infer"
    assert key not in lines()[0]


@pytest.fixture
def lines(tmp_path, monkeypatch):
    """What the host's end takes; the process's end is found through the environment."""
    taken: queue.Queue[str] = queue.Queue()
    host = logs.LogSocket(tmp_path / "log.sock", taken.put)
    monkeypatch.setenv(logs.LOG_SOCKET, str(host.path))
    yield taken
    host.close()


@pytest.fixture
def logger():
    found = logging.getLogger(logs.ROOT)
    kept = found.handlers[:], found.level, found.propagate
    yield found
    found.handlers[:], found.level, found.propagate = kept


def test_a_line_arrives_whole(lines, logger):
    logs.configure()
    logger.error("it broke", extra={"model": "m"})
    line = json.loads(lines.get(timeout=5))
    assert (line["message"], line["model"]) == ("it broke", "m")


def test_lines_keep_their_order(lines, logger):
    logs.configure(form="text")
    for number in range(3):
        logger.warning("line %d", number)
    assert [lines.get(timeout=5)[-6:] for _ in range(3)] == ["line 0", "line 1", "line 2"]


def test_a_host_that_is_gone_loses_lines_and_harms_nobody(tmp_path, monkeypatch):
    monkeypatch.setenv(logs.LOG_SOCKET, str(tmp_path / "gone.sock"))
    assert logs.log_stream().write("a line\n") == 7


def test_without_the_variable_lines_go_elsewhere(monkeypatch):
    monkeypatch.delenv(logs.LOG_SOCKET, raising=False)
    assert logs.log_stream() is None


def test_a_line_is_on_the_processes_stderr_at_once_whatever_serve_replaces_it_by(
    monkeypatch, capfd, logger
):
    monkeypatch.delenv(logs.LOG_SOCKET, raising=False)
    kept = io.StringIO()  # as Serve's, which a process that ends itself takes with it
    monkeypatch.setattr(sys, "stderr", kept)
    logs.configure(form="text")
    logger.error("it broke")
    assert capfd.readouterr().err.endswith("it broke\n")
    assert kept.getvalue() == ""


@pytest.mark.parametrize("form", ["json", "text"])
def test_a_key_is_in_no_line(written, form):
    """Not as a message, a field, or what an exception says."""
    configure, lines = written
    configure(form)
    key, _ = new_key()
    logger = logging.getLogger("headrace.x")
    logger.info("no model %s", key, extra={"model": key})
    try:
        raise ValueError(f"{key} is no number")
    except ValueError:
        logger.exception("it failed")
    assert "hr_…" in lines()[0]
    assert key[3:] not in "".join(lines())


def test_decisions_are_written_whatever_else_is_left_out() -> None:
    out = io.StringIO()
    logs.configure("warning", "json", out)
    logging.getLogger(logs.DECISIONS).info("decision", extra={"request_id": "r"})
    logging.getLogger(f"{logs.ROOT}.gateway").info("nobody asked for this")
    assert [json.loads(line)["request_id"] for line in out.getvalue().splitlines()] == ["r"]


def test_print_writes_into_files_what_it_is_given_in_a_replica_of_serve(written, monkeypatch):
    from ray.serve._private.logging_utils import redirected_print

    monkeypatch.setattr(builtins, "print", redirected_print)
    logs.configure("info", "json", stream=io.StringIO())
    file = io.StringIO()
    print("a", 1, file=file, flush=True)
    assert file.getvalue() == "a 1\n"
