"""A session goes where it was, while that costs little."""

import pytest

from routers.placement.choice import Affinity


def test_a_session_prefers_the_replica_that_served_it_last():
    affinity = Affinity()
    affinity.served(["s"], "a")
    affinity.served(["s"], "b")
    assert affinity.preferred("s") == "b"


def test_no_session_is_no_preference():
    affinity = Affinity()
    affinity.served([""], "a")
    assert affinity.preferred("") is None
    assert len(affinity) == 0


def test_the_session_used_least_recently_is_forgotten():
    affinity = Affinity(most=2)
    affinity.served(["one", "two"], "a")
    affinity.served(["one"], "a")
    affinity.served(["three"], "a")
    assert [affinity.preferred(each) for each in ("one", "two", "three")] == ["a", None, "a"]


@pytest.mark.parametrize(
    ("later_s", "streams", "gives_way"),
    [(0.0, False, False), (0.1, False, False), (0.11, False, True), (0.5, True, False),
     (0.51, True, True), (-1.0, True, False)],
)  # fmt: skip
def test_it_yields_beyond_a_share_of_the_work(later_s, streams, gives_way):
    assert Affinity.gives_way(later_s, 1.0, streams=streams) is gives_way
