"""Equal rows have equal keys; what is kept is found by its holder alone, until it is too old."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from deployments.gateway.reuse import answer_reuse
from deployments.gateway.reuse.answer_reuse import ResponseCache
from deployments.gateway.rows import RowAnswer, RowColumn, Rows, joint_key, row_keys

OUTPUTS = ("pooled", "hidden")
TTL_S = 10.0
ROOMY = 1 << 20


def tokens(*rows: list[int], name: str = "ids", datatype: str = "INT64") -> RowColumn:
    dtype = {"INT64": np.int64, "INT32": np.int32}[datatype]
    arrays = [np.array(row, dtype=dtype) for row in rows]
    return RowColumn(datatype, arrays, [(len(row),) for row in rows])


def strings(*rows: list[bytes]) -> RowColumn:
    arrays = []
    for row in rows:
        array = np.empty(len(row), dtype=object)
        array[:] = row
        arrays.append(array)
    return RowColumn("BYTES", arrays, [(len(row),) for row in rows])


def request(outputs: tuple[str, ...] | None = None, **inputs: RowColumn) -> Rows:
    count = len(next(iter(inputs.values())).rows)
    return Rows(count, (1,) * count, inputs, outputs)


def keys(rows: Rows, version: str = "1") -> list[bytes]:
    return row_keys(rows, version, OUTPUTS)


def test_a_row_has_the_same_key_wherever_it_stands() -> None:
    alone = keys(request(ids=tokens([1, 2])))
    among = keys(request(ids=tokens([3], [1, 2])))
    assert alone == among[1:]
    assert among[0] != among[1]


def test_the_order_of_inputs_and_outputs_makes_no_difference() -> None:
    a, b = tokens([1]), tokens([2])
    one = request(("pooled", "hidden"), ids=a, types=b)
    other = request(("hidden", "pooled"), types=b, ids=a)
    assert keys(one) == keys(other)


def test_all_outputs_are_the_same_as_every_one_of_them() -> None:
    ids = tokens([1])
    assert keys(request(None, ids=ids)) == keys(request(OUTPUTS, ids=ids))
    assert keys(request(None, ids=ids)) != keys(request(("pooled",), ids=ids))


def test_a_view_and_a_copy_have_the_same_key() -> None:
    whole = np.arange(8)
    view = RowColumn("INT64", [whole[2:5]], [(3,)])
    assert keys(request(ids=view)) == keys(request(ids=tokens([2, 3, 4])))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (request(ids=tokens([1, 2])), request(ids=tokens([2, 1]))),
        (request(ids=tokens([1])), request(types=tokens([1]))),
        (request(ids=tokens([1])), request(ids=tokens([1], datatype="INT32"))),
        (request(ids=tokens([1, 0], datatype="INT32")), request(ids=tokens([1]))),
        (request(ids=tokens([1])), request(ids=tokens([1]), types=tokens([0]))),
        (request(a=tokens([1]), b=tokens([2])), request(a=tokens([2]), b=tokens([1]))),
        (request(text=strings([b"ab", b"c"])), request(text=strings([b"a", b"bc"]))),
        (request(text=strings([b"", b"a"])), request(text=strings([b"a", b""]))),
        (request(("pooled",), ids=tokens([1])), request(("hidden",), ids=tokens([1]))),
    ],
)
def test_different_rows_have_different_keys(one: Rows, other: Rows) -> None:
    assert keys(one) != keys(other)


def test_a_shape_is_part_of_the_key() -> None:
    flat = np.arange(6)
    one = RowColumn("INT64", [flat], [(2, 3)])
    other = RowColumn("INT64", [flat], [(3, 2)])
    assert keys(request(x=one)) != keys(request(x=other))


def test_versions_share_no_key() -> None:
    rows = request(ids=tokens([1]))
    assert keys(rows, "1") != keys(rows, "2")


@given(st.lists(st.lists(st.binary(max_size=3), max_size=3), min_size=2, max_size=8))
def test_keys_are_equal_exactly_where_strings_are(rows: list[list[bytes]]) -> None:
    found = keys(request(text=strings(*rows)))
    for i, one in enumerate(rows):
        for j, other in enumerate(rows):
            assert (found[i] == found[j]) == (one == other)


def test_a_joint_key_knows_its_rows_and_their_order() -> None:
    a, b = keys(request(ids=tokens([1], [2])))
    assert len({joint_key([a]), joint_key([b]), joint_key([a, b]), joint_key([b, a])}) == 4
    assert joint_key([a]) == a


def answer(value: float, width: int = 4, version: str = "1") -> RowAnswer:
    array = np.full(width, value, dtype=np.float32)
    return RowAnswer({"y": ("FP32", array)}, dispatched=3.0, batch_size=8, version=version)


def value(found: RowAnswer | None) -> float | None:
    return None if found is None else float(found.outputs["y"][1][0])


def put(cache: ResponseCache, holder: str, key: bytes, given: RowAnswer, now: float = 0.0) -> None:
    cache.put(holder, key, given, ("y",), now)


@pytest.fixture
def cache() -> ResponseCache:
    return ResponseCache(ROOMY, TTL_S)


def test_an_answer_is_found_again_without_its_batch(cache: ResponseCache) -> None:
    put(cache, "a", b"k", answer(1.0))
    found = cache.get("a", b"k", 1.0)
    assert found is not None
    assert value(found) == 1.0
    assert (found.dispatched, found.batch_size, found.version) == (0.0, 0, "1")


def test_an_answer_is_kept_for_its_holder_alone(cache: ResponseCache) -> None:
    put(cache, "a", b"k", answer(1.0))
    assert cache.get("b", b"k", 1.0) is None


@pytest.mark.parametrize(("age_s", "found"), [(TTL_S - 0.001, True), (TTL_S, False)])
def test_an_answer_is_kept_for_so_long(cache: ResponseCache, age_s: float, found: bool) -> None:
    put(cache, "a", b"k", answer(1.0), 100.0)
    assert (cache.get("a", b"k", 100.0 + age_s) is not None) == found
    assert (cache.statistics().bytes > 0) == found


def test_a_later_answer_takes_the_place_of_an_earlier_one(cache: ResponseCache) -> None:
    put(cache, "a", b"k", answer(1.0), 0.0)
    before = cache.statistics()
    put(cache, "a", b"k", answer(2.0), 5.0)
    assert value(cache.get("a", b"k", TTL_S + 1)) == 2.0
    after = cache.statistics()
    assert (after.entries, after.bytes) == (before.entries, before.bytes)


def test_only_wanted_outputs_are_kept(cache: ResponseCache) -> None:
    given = answer(1.0)
    given.outputs["hidden"] = ("FP32", np.zeros(1000, dtype=np.float32))
    put(cache, "a", b"k", given)
    found = cache.get("a", b"k", 0.0)
    assert found is not None
    assert set(found.outputs) == {"y"}
    assert cache.statistics().bytes < 1000


def test_what_is_kept_does_not_hold_the_batch_it_was_cut_from(cache: ResponseCache) -> None:
    batch = np.zeros((32, 4), dtype=np.float32)
    put(cache, "a", b"k", RowAnswer({"y": ("FP32", batch[3])}))
    batch[3] = 7
    found = cache.get("a", b"k", 0.0)
    assert found is not None
    kept = found.outputs["y"][1]
    assert kept.base is None
    assert not kept.flags.writeable
    assert value(found) == 0.0


def test_the_least_recently_used_answer_makes_room() -> None:
    one = answer(0.0, width=200)
    cache = ResponseCache(ROOMY, TTL_S)
    put(cache, "a", b"k", one)
    size = cache.statistics().bytes
    cache = ResponseCache(size * 16, TTL_S)
    for number in range(16):
        put(cache, "a", b"%d" % number, one)
    assert cache.get("a", b"0", 0.0) is not None
    put(cache, "a", b"more", one)
    assert cache.get("a", b"0", 0.0) is not None
    assert cache.get("a", b"1", 0.0) is None
    assert cache.statistics().evictions_total == 1


def test_an_answer_that_would_take_most_of_the_cache_is_not_kept() -> None:
    cache = ResponseCache(64_000, TTL_S)
    put(cache, "a", b"small", answer(1.0))
    for width in (1_000, 16_000, 1_000_000):
        put(cache, "a", b"huge", answer(2.0, width))
    assert cache.get("a", b"huge", 0.0) is None
    assert value(cache.get("a", b"small", 0.0)) == 1.0
    assert cache.statistics().entries == 1


def test_one_tenants_burst_does_not_flush_anothers_answers() -> None:
    cache = ResponseCache(100_000, TTL_S)
    for number in range(20):
        put(cache, "quiet", b"%d" % number, answer(1.0))
    for number in range(1000):
        put(cache, "loud", b"%d" % number, answer(2.0))
    assert all(cache.get("quiet", b"%d" % number, 0.0) for number in range(20))


def test_a_tenant_that_comes_later_gets_its_equal_share() -> None:
    cache = ResponseCache(100_000, TTL_S)
    for number in range(1000):
        put(cache, "first", b"%d" % number, answer(1.0))
    full = cache.statistics().entries
    for number in range(1000):
        put(cache, "second", b"%d" % number, answer(2.0))
    found = sum(cache.get("first", b"%d" % n, 0.0) is not None for n in range(1000))
    assert abs(found - full / 2) <= 1


def test_adopting_another_version_forgets_everything(cache: ResponseCache) -> None:
    put(cache, "a", b"k", answer(1.0))
    cache.adopt(ROOMY, TTL_S)
    assert cache.get("a", b"k", 0.0) is None
    assert cache.statistics().bytes == cache.statistics().entries == 0


@pytest.mark.parametrize("width", [1, 100])
@pytest.mark.parametrize("datatype", ["FP32", "BYTES"])
def test_the_bound_counts_all_that_python_takes(width: int, datatype: str) -> None:
    limit = 1 << 18
    array = np.zeros(width, dtype=np.float32)
    if datatype == "BYTES":
        array = np.empty(width, dtype=object)
    cache = ResponseCache(limit, TTL_S)
    tracemalloc.start()
    for number in range(3 * limit // (800 + width * 4)):
        if datatype == "BYTES":
            array[:] = [b"%d" % (number + n) for n in range(width)]
        put(cache, "a", b"%032d" % number, RowAnswer({"y": (datatype, array)}))
    # Of these two files: other tests' threads allocate too.
    own = [tracemalloc.Filter(True, file) for file in (__file__, answer_reuse.__file__)]
    traces = tracemalloc.take_snapshot().filter_traces(own).traces
    tracemalloc.stop()
    taken = sum(trace.size for trace in traces)
    assert cache.statistics().evictions_total > 0
    assert limit / 2 < taken <= limit


class CacheMachine(RuleBasedStateMachine):
    """Against a dictionary that never forgets: what is found is what was put last for that holder
    and key, within its time; bytes never exceed the limit."""

    LIMIT = 16_000
    holders = st.sampled_from(["a", "b", "c"])
    keys = st.sampled_from([b"%d" % n for n in range(12)])

    def __init__(self) -> None:
        super().__init__()
        self.cache = ResponseCache(self.LIMIT, TTL_S)
        self.model: dict[tuple[str, bytes], tuple[float, float]] = {}
        self.now = 0.0
        self.puts = 0

    @rule(holder=holders, key=keys, width=st.integers(1, 3000))
    def keep(self, holder: str, key: bytes, width: int) -> None:
        self.puts += 1
        before = self.cache.get(holder, key, self.now)
        put(self.cache, holder, key, answer(self.puts, width), self.now)
        found = self.cache.get(holder, key, self.now)
        if width <= 45:  # small enough for a sixteenth
            assert value(found) == self.puts
        elif width >= 250:  # too large: what was there stays
            assert value(found) == value(before)
            return
        if value(found) == self.puts:
            self.model[holder, key] = (self.puts, self.now)

    @rule(holder=holders, key=keys)
    def look(self, holder: str, key: bytes) -> None:
        found = value(self.cache.get(holder, key, self.now))
        if found is not None:
            expected, at = self.model[holder, key]
            assert found == expected
            assert self.now < at + TTL_S

    @rule(seconds=st.floats(0.1, 6.0))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @precondition(lambda self: self.puts > 5)
    @rule()
    def another_version(self) -> None:
        self.cache.adopt(self.LIMIT, TTL_S)
        self.model.clear()

    @invariant()
    def bytes_are_bounded_and_add_up(self) -> None:
        said = self.cache.statistics()
        holders = self.cache._holders.values()
        assert said.bytes == sum(e.bytes for held in holders for e in held.entries.values())
        assert all(held.entries for held in holders)
        assert said.bytes <= self.LIMIT


TestCacheMachine = pytest.mark.slow(CacheMachine.TestCase)
