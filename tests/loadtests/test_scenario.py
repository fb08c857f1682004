"""Does a scenario say what it means, and does a wrong one say where and why it is wrong?"""

from itertools import pairwise
from pathlib import Path

import pytest

from loadtests.traffic import scenario_page
from loadtests.traffic.scenario import Scenario
from loadtests.traffic.scenario_file import ScenarioErrors, check, load, located

PLAIN = {
    "settings": "device.yaml",
    "duration_s": 5,
    "arrivals": {"rate": 10},
    "lengths": {"fixed": 8},
}
BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{name}: &{name} [{', '.join([f'*{before}'] * 9)}]\n" for before, name in pairwise("abcdefghi")
)


def mistakes(**changed):
    with pytest.raises(ScenarioErrors) as caught:
        check(PLAIN | changed)
    return str(caught.value)


def test_smallest_scenario_has_one_tenant():
    scenario = check(PLAIN)
    assert [name for name, _ in scenario.callers()] == ["default"]
    assert scenario.slice_of("default") == (0.0, 1.0)


def test_tenants_part_the_arrivals_by_their_shares():
    scenario = check(
        PLAIN | {"tenants": {"a": {"share": 3}, "own": {"arrivals": {"rate": 5}}, "b": {}}}
    )
    slices = [scenario.slice_of(name) for name in ("a", "b", "own")]
    assert slices == [(0.0, 0.75), (0.75, 1.0), (0.0, 1.0)]


def test_mistakes_name_file_line_and_path(tmp_path):
    file = tmp_path / "wrong.yaml"
    file.write_text(
        "settings: a.yaml\nduration_s: '5'\narrivals: {rate: 1, xyz: 3}\n"
        "tenants:\n  a:\n    lengths: {bands: [{share: 1, low: 3, hi: 4}]}\n"
    )
    with pytest.raises(ScenarioErrors) as caught:
        load(file)
    assert str(caught.value).splitlines() == [
        f"{file}:2: duration_s: is '5'; must be a number",
        f"{file}:3: arrivals.xyz: unknown; known here: process, rate, cv, steps, bursts, "
        "clients, think_s, file, time_column, smear_s, speed, plus",
        f"{file}:6: tenants.a.lengths.bands[0].hi: unknown; did you mean high?",
        f"{file}:6: tenants.a.lengths.bands[0].high: is missing",
    ]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "must be a mapping"),
        ("- a", "must be a mapping"),
        ("a: [", ":1: is no YAML"),
        ("settings: a\nsettings: b", ":2: settings: is set twice"),
        ("a: 1\n? [1, 2]\n: 3", ":2: is no YAML: a name is no text"),
        ("settings: 2024-99-01", "is no YAML: month must be"),
        ("duration_s: " + "9" * 5000, "is no YAML"),
        ("a: &a {b: *a}", "is no YAML"),
        (BOMB, "expands to more than 100000 values"),
    ],
)
def test_file_that_is_no_scenario_is_refused(tmp_path, text, said):
    file = tmp_path / "wrong.yaml"
    file.write_text(text)
    with pytest.raises(ScenarioErrors, match=said):
        load(file)


def test_missing_file_is_said_to_be_missing(tmp_path):
    with pytest.raises(ScenarioErrors, match="cannot be read: no such file"):
        load(tmp_path / "none.yaml")


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"arrivals": {"process": "closed", "rate": 3}}, "closed has no rate"),
        ({"arrivals": {"process": "gamma"}}, "gamma needs rate"),
        ({"lengths": {"lognormal": {"mu": 1e6, "sigma": 1}}}, "lengths.lognormal.mu"),
        ({"lengths": {"lognormal": {"mu": 1, "sigma": 1e6}}}, "lengths.lognormal.sigma"),
        ({"device": {"base_ms": 1e300}}, "device.base_ms: is 1e+300; must be"),
        ({"network_ms": 1e308}, "network_ms"),
        ({"faults": {"chaos": {"every_s": 1e-9}}}, "faults.chaos.every_s"),
        ({"faults": {"hiccups": {"share": 1, "factor": 1e300}}}, "faults.hiccups.factor"),
        ({"faults": {"slow": [{"replica": 0, "factor": 1e308}]}}, "faults.slow[0].factor"),
        ({"arrivals": {"process": "trace"}}, "trace needs file"),
        ({"arrivals": None}, "no arrivals"),
        ({"lengths": None}, "no lengths"),
        ({"lengths": {"column": ""}}, "its arrivals are not from a trace"),
        ({"lengths": {"fixed": 8, "exponential": {"mean": 3}}}, "exactly one of"),
        ({"lengths": {"bands": []}}, "exactly one of"),
        ({"lengths": {"bands": [{"share": 1, "low": 9, "high": 8}]}}, "below low"),
        ({"lengths": {"fixed": 8, "at_least": 9, "at_most": 3}}, "below at_least"),
        ({"arrivals": {"rate": 1, "steps": [{"from_s": 1, "rate": 1}] * 2}}, "ascend"),
        (
            {"arrivals": {"rate": 1, "bursts": {"every_s": 1, "last_s": 2, "factor": 2}}},
            "longer than",
        ),
        ({"arrivals": {"process": "closed"}, "tenants": {"a": {}, "b": {}}}, "cannot be shared"),
        ({"tenants": {"a": {"share": 1, "arrivals": {"rate": 1}}}}, "may have one"),
        ({"tenants": {"a": {"gateways": [1, 1]}}, "gateways": 1}, "more gateways"),
        ({"tenants": {"a": {"gateways": [0, 0]}}}, "must not all be 0"),
        ({"duration_s": 0}, "greater than 0"),
    ],
)
def test_scenario_that_makes_no_sense_is_refused(changed, said):
    assert said in mistakes(**changed)


@pytest.mark.parametrize(
    ("change", "read"),
    [
        ("arrivals.rate=300", lambda s: s.arrivals.rate == 300),
        ("tenants.new.share=2", lambda s: s.tenants["new"].share == 2),
        ("arrivals={process: closed, clients: 4}", lambda s: s.arrivals.clients == 4),
        ("arrivals.steps.0.rate=7", lambda s: s.arrivals.steps[0].rate == 7),
    ],
)
def test_single_values_can_be_changed(tmp_path, change, read):
    file = tmp_path / "some.yaml"
    file.write_text(
        "settings: a.yaml\nduration_s: 5\nlengths: {fixed: 8}\n"
        "arrivals: {rate: 10, steps: [{from_s: 1, rate: 5}]}\n"
    )
    assert read(load(file, [change]))


@pytest.mark.parametrize("change", ["rate", "=3", "a..b=3", "arrivals.steps.4.rate=1", "a=[}"])
def test_change_that_cannot_be_made_is_refused(tmp_path, change):
    file = tmp_path / "some.yaml"
    file.write_text("arrivals: {steps: [{rate: 5}]}\n")
    with pytest.raises(ScenarioErrors):
        load(file, [change])


def test_every_field_is_described():
    def silent(part, at):
        for name, field in part.model_fields.items():
            if not field.description:
                yield f"{at}.{name}"

    parts = {Scenario}
    while True:
        inner = {
            each
            for part in parts
            for field in part.model_fields.values()
            for each in _parts(field.annotation)
        }
        if inner <= parts:
            break
        parts |= inner
    assert len(parts) > 10
    assert not [name for part in parts for name in silent(part, part.__name__)]


def _parts(annotation):
    if hasattr(annotation, "model_fields"):
        yield annotation
    for inner in getattr(annotation, "__args__", ()):
        yield from _parts(inner)


@pytest.mark.parametrize(
    "file", sorted((Path(__file__).parents[2] / "loadtests" / "scenarios").glob("*.yaml"))
)
def test_scenarios_that_are_shipped_are_right(file):
    if "models:" not in file.read_text():
        assert load(file).about


def test_bare_name_is_a_scenario_that_ships_unless_there_is_such_a_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert load(located(Path("ragged-mix"))).about
    assert located(Path("nothing-like-it")) == Path("nothing-like-it")
    assert located(tmp_path / "ragged-mix") == tmp_path / "ragged-mix"
    Path("ragged-mix").write_text("own")
    assert located(Path("ragged-mix")) == Path("ragged-mix")


def test_manual_page_is_written_from_the_format():
    text = scenario_page.page()
    assert scenario_page.PAGE.read_text() == text
    for name in ("arrivals", "bursts.every_s", "retry.attempts", "slow[].factor"):
        assert f"`{name}`" in text


@pytest.mark.parametrize(
    ("name", "hint"),
    [("raged-mix", "did you mean ragged-mix?"), ("xyz", "ours stand in .*scenarios")],
)
def test_a_name_that_is_neither_file_nor_scenario_says_what_there_is(name, hint):
    with pytest.raises(
        ScenarioErrors, match=f"{name}: is no file, and no scenario of ours; {hint}"
    ):
        load(located(Path(name)))


@pytest.mark.parametrize(
    ("changed", "said"),
    [("foo=3", "--set foo=3: foo: unknown"), ("duration_s=-1", "--set duration_s=-1: duration_s:")],
)
def test_what_a_change_has_wrong_is_not_said_of_the_file(changed, said):
    with pytest.raises(ScenarioErrors, match=f"^{said}"):
        load(located(Path("ragged-mix")), ["arrivals.rate=5", changed])
