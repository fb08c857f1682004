from __future__ import annotations

import pytest

from deployments.tools.kube.api import KubernetesError
from deployments.tools.kube.merged_logs import LogOptions, merged
from tests.deployments.tools.kube.kube_objects import pod

ALL = LogOptions()


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


def printed(logs: Logs, options: LogOptions = ALL) -> tuple[int, list[str], list[str]]:
    said: list[str] = []
    warned: list[str] = []
    failed = merged(logs, [pod(name) for name in logs.lines], options, said.append, warned.append)
    return failed, said, warned


def test_lines_are_in_the_order_of_their_times():
    logs = Logs(a=[b"1Z one", b"3Z three"], b=[b"2Z two", b"4Z "])
    assert printed(logs) == (0, ["a | one", "b | two", "a | three", "b | "], [])


def test_a_line_that_is_no_text_is_shown_as_far_as_it_is():
    assert printed(Logs(a=[b"1Z \xff!"]))[1] == ["a | \ufffd!"]


@pytest.mark.parametrize("follow", [False, True])
def test_a_log_that_breaks_off_says_why_and_ends_no_other(follow):
    logs = Logs(a=[b"1Z one", KubernetesError("forbidden")], b=[b"2Z two"])
    failed, said, warned = printed(logs, LogOptions(follow=follow))
    assert (failed, sorted(said), warned) == (1, ["a | one", "b | two"], ["a: forbidden"])


def test_what_nobody_expects_of_a_followed_log_is_not_swallowed():
    with pytest.raises(ValueError, match="odd"):
        printed(Logs(a=[ValueError("odd")]), LogOptions(follow=True))


def test_options_are_those_that_were_given():
    logs = Logs(a=[])
    printed(logs)
    printed(logs, LogOptions(since_s=60, tail=5, follow=True, previous=True))
    given = {"since_seconds": 60, "tail_lines": 5, "follow": True, "previous": True}
    assert logs.asked == [("a", "ray", {}), ("a", "ray", given)]
