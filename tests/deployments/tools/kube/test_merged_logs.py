from __future__ import annotations

import threading

import pytest

from deployments.tools.kube import containers
from deployments.tools.kube.api import KubernetesError
from deployments.tools.kube.merged_logs import LogOptions, merged
from tests.deployments.tools.kube.kube_objects import THEN, container_status, pod

ALL = LogOptions()
RUNS, ENDED = {"running": {"startedAt": THEN}}, {"terminated": {"exitCode": 1}}
WAITS = {"waiting": {"reason": "PodInitializing"}}


class Logs:
    """Lines by pod; an exception in the list is raised there."""

    def __init__(self, **lines):
        self.lines, self.asked = lines, []

    def log(self, name, container, **options):
        self.asked.append((name, container, options))
        for each in self.lines[name]:
            if isinstance(each, Exception):
                raise each
            yield each


def printed(logs: Logs, options: LogOptions = ALL) -> tuple[bool, list[str], list[str]]:
    said: list[str] = []
    warned: list[str] = []
    had = merged(logs, [pod(name) for name in logs.lines], options, said.append, warned.append)
    return had, said, warned


def test_lines_are_in_the_order_of_their_times():
    logs = Logs(a=[b"1Z one", b"3Z three"], b=[b"2Z two", b"4Z "])
    assert printed(logs) == (True, ["a | one", "b | two", "a | three", "b | "], [])


def test_a_line_that_is_no_text_is_shown_as_far_as_it_is():
    assert printed(Logs(a=[b"1Z \xff!"]))[1] == ["a | \ufffd!"]


@pytest.mark.parametrize("follow", [False, True])
def test_a_log_that_breaks_off_says_why_and_ends_no_other(follow):
    logs = Logs(a=[b"1Z one", KubernetesError("forbidden")], b=[b"2Z two"])
    had, said, warned = printed(logs, LogOptions(follow=follow))
    assert (had, sorted(said), warned) == (True, ["a | one", "b | two"], ["a: forbidden"])


def test_none_is_had_where_every_one_is_refused():
    assert not printed(Logs(a=[KubernetesError("forbidden")]))[0]


def test_what_a_followed_log_lacks_is_said_while_others_are_still_followed():
    warned = threading.Event()

    def until_then():
        yield b"1Z one"
        assert warned.wait(10)

    logs = Logs(a=until_then(), b=[KubernetesError("forbidden")])
    said: list[str] = []
    merged(logs, [pod("a"), pod("b")], LogOptions(follow=True), said.append, lambda _: warned.set())
    assert said == ["a | one"]


@pytest.mark.parametrize(
    ("init", "others", "previous", "asked"),
    [
        ([], [("ray", RUNS, {}), ("autoscaler", RUNS, {})], False, ["ray", "autoscaler"]),
        ([("wait", ENDED, {})], [("ray", RUNS, {})], False, ["ray"]),
        ([("wait", RUNS, {})], [("ray", WAITS, {})], False, ["wait"]),
        ([("wait", WAITS, ENDED)], [("ray", WAITS, {})], False, ["wait"]),
        ([("wait", ENDED, {})], [("ray", WAITS, ENDED)], False, ["wait", "ray"]),
        ([("wait", ENDED, {})], [("ray", WAITS, ENDED)], True, ["ray"]),
        ([], [("ray", RUNS, {}), ("autoscaler", RUNS, ENDED)], True, ["autoscaler"]),
        ([], [("ray", WAITS, {})], False, ["ray"]),
        ([], [], False, ["ray"]),
    ],
)
def test_containers_are_those_that_have_printed(init, others, previous, asked):
    def statuses(given):
        return [container_status(state, name, lastState=last) for name, state, last in given]

    status = {"initContainerStatuses": statuses(init), "containerStatuses": statuses(others)}
    assert containers.with_logs(pod("p", status=status), previous=previous) == asked


def test_what_nobody_expects_of_a_followed_log_is_not_swallowed():
    with pytest.raises(ValueError, match="odd"):
        printed(Logs(a=[ValueError("odd")]), LogOptions(follow=True))


def test_options_are_those_that_were_given():
    logs = Logs(a=[])
    printed(logs)
    printed(logs, LogOptions(since_s=60, tail=5, follow=True, previous=True))
    given = {"since_seconds": 60, "tail_lines": 5, "follow": True, "previous": True}
    assert logs.asked == [("a", "ray", {}), ("a", "ray", given)]
