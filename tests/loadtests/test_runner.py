"""Are a bench's runs told apart, taken in turn, judged, and is every bench one that can be run?"""

import json
import math
from contextlib import contextmanager
from importlib import import_module

import pytest

from loadtests.benches.document import OF_RUNTIMES, ON_NODES, ORDER, SIMULATED
from loadtests.benches.runner import (
    Bench,
    BenchOption,
    BenchRun,
    Runs,
    alternate,
    in_turn,
    median,
    spread,
    table,
    total,
)
from loadtests.results import report_table
from loadtests.results.report_table import Table, at_least

MEASURED = (("a", 10.0, 1), ("b", 5.0, 1), ("a", 20.0, 2), ("a", 30.0, 2))
RUNS = Runs(BenchRun(side, {"rate": rate}, case) for side, rate, case in MEASURED)
SPECS = [f"loadtests.benches.{name}" for name in ORDER if name != "compare"]
SPECS += ["loadtests.benches.compare.__main__"]
SPECS += [f"tests.simulation.benches.{name}" for name in (*SIMULATED, "core_speed")]
SPECS += [f"tests.runtimes.benches.{name}" for name in OF_RUNTIMES]
SPECS += [f"tests.cluster.benches.{name}" for name in ON_NODES]


def rate(result):
    return result["rate"]


def test_runs_are_told_apart_by_side_and_case():
    assert RUNS.of("a").median(rate) == 20.0
    assert RUNS.of("a", 2).median(rate) == 25.0
    assert RUNS.of("a", 2).spread(rate) == "20.00–30.00"
    assert RUNS.of("a").total(rate) == 60.0
    assert math.isnan(RUNS.of("nobody").median(rate))


def test_sides_take_turns_and_none_is_always_the_first():
    assert list(in_turn("abc", 3)) == [
        *((0, side) for side in "abc"), *((1, side) for side in "cba"),
        *((2, side) for side in "abc"),
    ]  # fmt: skip


def test_table_has_a_row_a_side():
    columns = (("median", median(rate)), ("all", spread(rate)), ("sum", total(rate)))
    made = table("caption", columns, {"a": RUNS.of("a"), "b": RUNS.of("b")}, "side")
    assert made.headers == ("side", "median", "all", "sum")
    assert made.rows == (("a", 20.0, "10.00–30.00", 60.0), ("b", 5.0, "5.00–5.00", 5.0))


def test_each_side_is_started_in_turn_and_driven_through_all_cases(monkeypatch, capsys):
    started = []

    @contextmanager
    def start(side):
        started.append(side)
        yield side.upper()

    def measure(options):
        return alternate("ab", 2, start, lambda side, server, case: len(started) + case, (10, 20))

    bench = Bench(
        name="x",
        about="",
        title="x",
        measure=measure,
        columns=(
            ("median", median(float)),
            ("of a", lambda mine: mine.beside("a").median(float)),
        ),
        caption=lambda case, options: f"{case} clients",
        first="side",
    )
    options = bench.parser().parse_args([])
    tables = bench.report(Runs(bench.told(options)), options).tables
    assert started == ["a", "b", "b", "a"]
    assert [(each.caption, each.headers) for each in tables] == [
        ("10 clients", ("side", "median", "of a")), ("20 clients", ("side", "median", "of a")),
    ]  # fmt: skip
    assert tables[0].rows == (("a", 12.5, 12.5), ("b", 12.5, 12.5))
    assert "a 10: median 11.00, of a 11.00" in capsys.readouterr().err


@pytest.mark.parametrize(("least", "code"), [(1.0, 0), (99.0, 1)])
def test_a_report_is_written_and_its_bars_decide_the_exit_code(
    least, code, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(report_table.write, "__defaults__", (tmp_path,))
    bench = Bench(
        name="example",
        about="An example.",
        title=lambda options: f"{options.times} times",
        options={"times": BenchOption(2), "sides": BenchOption(["a", "b"], choices="abc")},
        measure=lambda options: [BenchRun(s, options.times) for s in options.sides],
        tables=lambda runs, options: [Table("", ("side",), tuple((r.side,) for r in runs))],
        thresholds=lambda runs, options: [at_least("enough", runs.total(float), least)],
        notes=("A note.",),
    )
    assert bench.main(["--times", "3", "--sides", "c", "a"]) == code
    written = json.loads((tmp_path / "example.json").read_text())
    assert written["raw"] == {"runs": [["c", "", 3], ["a", "", 3]]}
    assert written["command"].endswith("example --times 3 --sides c a")
    assert "## 3 times" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ([], {"rate": [1.0], "edges": [], "on": True, "set": []}),
        (["--rate", "2", "3"], {"rate": [2.0, 3.0]}),
        (["--edges", "8", "16", "--no-on"], {"edges": [8, 16], "on": False}),
        (["--set", "a=1", "--set", "b=2"], {"set": ["a=1", "b=2"]}),
    ],
)
def test_options_take_the_kind_of_their_default(given, found):
    options = {
        "rate": BenchOption([1.0]),
        "edges": BenchOption([], parse=int),
        "on": BenchOption(True),
    }
    bench = Bench(
        "x", "", "x", measure=lambda o: [], tables=lambda r, o: [],
        options={**options, "set": BenchOption(())},
    )  # fmt: skip
    assert vars(bench.parser().parse_args(given)).items() >= found.items()


@pytest.mark.parametrize("name", SPECS)
def test_every_bench_is_found_by_its_name_and_takes_its_defaults(name):
    bench = import_module(name).BENCH
    assert f"{bench.package}.{bench.name}" == name.removesuffix(".__main__")
    defaults = vars(bench.parser().parse_args([]))
    assert defaults.keys() == bench.options.keys()
