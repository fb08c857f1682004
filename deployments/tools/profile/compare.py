"""`headrace profile --compare`: the backends that run a model, timed at its own lengths.

Every backend that was named, at the precision that was named with it, or else at fp32, bf16 and the
model's own where the backend has them, in each of its modes. Options of the model's own backend
hold; another one gets those that it knows, too. Each runs in a process of its own, one after
another, so that threads, allocators and libraries do not mix: passes over the given lengths, sorted
into the fullest batches that the settings allow. Two whose passes overlap count as equally fast.
"""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from random import Random
from statistics import fmean, median
from time import perf_counter
from typing import Any, get_args, get_type_hints

from deployments.replica.describe import runtime_settings
from deployments.settings.model import ModelSettings
from deployments.tools.console.progress_bar import shown_progress
from deployments.tools.profile import generation
from deployments.tools.profile.backend_loop import plain_batch, sorted_groups
from deployments.tools.profile.lengths import WrongArguments, as_taken
from deployments.tools.profile.measure import (
    CannotProfile,
    ChosenModel,
    ProfileOptions,
    chosen,
    created,
    in_a_process,
    named,
)
from loadtests.report.table import aligned
from loadtests.results.report_table import Table, number
from runtimes import catalog
from runtimes.errors import LoadError

PRECISIONS = ("fp32", "bf16")
ROWS = 128
_ONLY_THEIRS = ("synthetic", "python")  # no other backend runs what they run


@dataclass(frozen=True, slots=True)
class Candidate:
    """`mode`: the backend's own word, "" without any."""

    runtime: str
    precision: str
    mode: str
    options: tuple[tuple[str, Any], ...]

    def __str__(self) -> str:
        return " ".join(filter(None, (self.runtime, self.mode, self.precision)))


@dataclass(frozen=True, slots=True)
class Timed:
    """Real tokens a second of each pass, and the mean seconds of a batch."""

    name: str
    rates: tuple[float, ...]
    batch_s: float

    @property
    def rate(self) -> float:
        return median(self.rates)


def compare(options: ProfileOptions, names: Sequence[str], *, as_json: bool) -> int:
    """The exit code. Raises as `profile` does; nothing is stored."""
    if named(options)[1].task == catalog.GENERATE:
        return generation.profile(options, names, as_json=as_json)
    found = chosen(options)
    skipped: dict[str, str] = {}
    wanted = list(candidates(names, found.model, skipped))
    lengths = Random(options.seed).choices(found.lengths.rows, k=ROWS)
    timed: list[Timed] = []
    with shown_progress(found.name) as note:
        for place, candidate in enumerate(wanted):
            note(str(candidate), place / len(wanted))
            try:
                timed.append(_timed(candidate, found, lengths, options.seconds / len(wanted)))
            except CannotProfile as failed:
                skipped[str(candidate)] = str(failed)
    sentences = [f"Skipped: {name}: {why}" for name, why in skipped.items()]
    if not timed:
        raise CannotProfile("\n".join(["nothing could be compared:", *sentences]))
    timed.sort(key=lambda each: -each.rate)
    sentences = [*verdict(timed), *sentences]
    if as_json:
        ranking = [asdict(each) | {"tokens_per_s": each.rate} for each in timed]
        print(json.dumps({"model": found.name, "lengths": found.lengths.said, "ranking": ranking,
                          "skipped": skipped}))  # fmt: skip
    else:
        table = _table(timed, found)
        print("\n".join([table.caption, "", *aligned(table), "", *sentences]))
    return 0


def candidates(
    names: Sequence[str], model: ModelSettings, skipped: dict[str, str]
) -> Iterator[Candidate]:
    """Backends that are not installed go to `skipped`, with what to install. Raises WrongArguments
    for a backend that there is not."""
    for wanted in dict.fromkeys(names):
        name, _, asked = wanted.partition(":")
        if name not in catalog.names() or name in _ONLY_THEIRS:
            others = ", ".join(each for each in catalog.names() if each not in _ONLY_THEIRS)
            raise WrongArguments(
                f"--compare: is {name!r}; must be some of {others}, perhaps with :PRECISION"
            )
        entry = catalog.entry_of(name)
        if asked and asked not in entry.precisions:
            raise WrongArguments(
                f"--compare: {name} has no precision {asked!r}, but {', '.join(entry.precisions)}"
            )
        if missing := catalog.available(name):
            skipped[name] = missing
            continue
        kind = getattr(importlib.import_module(entry.module), f"{entry.prefix}Options")
        known = {each.name for each in fields(kind)}
        options = {key: value for key, value in model.options.items() if key in known}
        modes = get_args(get_type_hints(kind).get("mode")) or ("",)
        for precision in [asked] if asked else dict.fromkeys((*PRECISIONS, model.precision)):
            for mode in map(str, modes):
                told = {**options, **({"mode": mode} if mode else {})}
                if precision in entry.precisions and _takes(name, precision, told):
                    yield Candidate(name, precision, mode, tuple(sorted(told.items())))


def _takes(name: str, precision: str, options: dict[str, Any]) -> bool:
    try:
        catalog.check(name, options, precision)
    except LoadError:
        return False
    return True


def verdict(timed: Sequence[Timed]) -> Iterator[str]:
    """Who is fastest and by how much; who may as well be. `timed`: the fastest first."""
    best = timed[0]
    ties = [each.name for each in timed[1:] if max(each.rates) >= min(best.rates)]
    slower = next((each for each in timed[1:] if each.name not in ties), None)
    yield f"Fastest for this model at these lengths: {best.name}."
    if ties:
        yield f"Passes overlap with its own: {'; '.join(ties)}."
    if slower is not None:
        yield f"{best.rate / slower.rate:.2f} times as fast as {slower.name}."


def _table(timed: Sequence[Timed], found: ChosenModel) -> Table:
    model, best = found.model, timed[0].rate
    return Table(
        f"{found.name}: {ROWS} rows of {found.lengths.said} (mean {found.lengths.mean:,.0f} "
        f"tokens), sorted into batches of at most {model.batch.max_size} rows and "
        f"{model.batch.max_tokens} tokens",
        ("backend", "tokens/s", "by pass", "batch mean ms", "to the best"),
        tuple(
            (each.name, each.rate, f"{number(min(each.rates))}–{number(max(each.rates))}",
             each.batch_s * 1e3, f"{each.rate / best:.2f}")
            for each in timed
        ),
    )  # fmt: skip


# ---- in a process of its own --------------------------------------------------------------------


def _timed(
    candidate: Candidate, found: ChosenModel, lengths: Sequence[int], seconds: float
) -> Timed:
    """Raises CannotProfile."""
    told = {"runtime": candidate.runtime, "precision": candidate.precision,
            "options": dict(candidate.options)}  # fmt: skip
    job = {
        "name": found.name, "model": found.model.model_dump(mode="json", exclude_unset=True) | told,
        "cache_dir": str(found.cache_dir), "lengths": list(lengths), "seconds": seconds,
    }  # fmt: skip
    answer = in_a_process(__name__, job, seconds)
    return Timed(str(candidate), tuple(answer["rates"]), answer["batch_s"])


def main() -> None:
    """Times the job on standard input: whole passes over the same batches, the first of which does
    not count."""
    job = json.load(sys.stdin)
    model = ModelSettings.model_validate(job["model"])
    settings = runtime_settings(job["name"], model, Path(job["cache_dir"]), lambda *_: None)
    runtime = created(settings)
    runtime.load()
    limits = runtime.limits()
    most = min(settings.max_size, limits.max_rows or settings.max_size)
    groups = sorted_groups(as_taken(job["lengths"], limits), most, settings.max_tokens)
    batches = [plain_batch(limits, group) for group in groups]
    tokens = sum(int(batch.lengths.sum()) for batch in batches)
    took: list[float] = []
    begin = perf_counter()
    while len(took) < 3 or perf_counter() - begin < job["seconds"]:
        start = perf_counter()
        for batch in batches:
            runtime.run(batch)
        took.append(perf_counter() - start)
    runtime.close()
    counted = took[1:]
    rates = [tokens / each for each in counted]
    print(json.dumps({"rates": rates, "batch_s": fmean(counted) / len(batches)}))


if __name__ == "__main__":
    main()
