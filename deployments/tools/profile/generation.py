"""`headrace profile` of a model that generates: tokens a second, by how many answers run at once.

The model as its settings have it; with `--compare` the backends that are named; and where tokens
are proposed (`speculative`), the same without. Each side runs in a process of its own, one after
another, for an equal part of the time. Nothing is stored: the engine forms the batches, and each
replica measures its steps at its start. Prompts are drawn ids: what is gained by proposals depends
on the texts, so a side also tells which share of them was kept.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import sys
from collections.abc import Iterator, Sequence
from contextlib import aclosing
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

from deployments.replica import backend_env
from deployments.replica.describe import runtime_settings
from deployments.settings.model import ModelSettings
from deployments.settings_files.made import cache_dir
from deployments.tools.console.progress_bar import shown_progress
from deployments.tools.profile.lengths import WrongArguments
from deployments.tools.profile.measure import (
    CannotProfile,
    ProfileOptions,
    in_a_process,
    named,
)
from loadtests.report.table import aligned
from loadtests.results.report_table import Table, number
from runtimes import catalog
from runtimes.errors import LoadError, RuntimeFault
from runtimes.types import StreamRequest, StreamRuntime

COUNTS = (1, 2, 4, 8, 16, 32)
PROMPT, OUTPUT = 64, 64  # tokens
_SPECULATIVE = "speculative"


@dataclass(frozen=True, slots=True)
class Side:
    """`changes`: to the model's settings."""

    name: str
    changes: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Level:
    """So many answers at once: tokens a second of each pass, the median seconds to the first token,
    and tokens that were proposed and kept."""

    count: int
    rates: tuple[float, ...]
    first_s: float
    drafted: int
    accepted: int

    @property
    def rate(self) -> float:
        return median(self.rates)


def profile(options: ProfileOptions, names: Sequence[str] = (), *, as_json: bool) -> int:
    """The exit code. Raises SettingsErrors, WrongArguments and CannotProfile."""
    name, model = named(options)
    if options.lengths is not None:
        raise WrongArguments(f"{name} generates: --lengths is for models whose batches are formed")
    skipped: dict[str, str] = {}
    wanted = list(sides(names, model, skipped))
    found: dict[str, list[Level]] = {}
    with shown_progress(name) as note:
        for place, side in enumerate(wanted):
            note(side.name, place / len(wanted))
            try:
                found[side.name] = _timed(side, name, options, options.seconds / len(wanted))
            except CannotProfile as failed:
                skipped[side.name] = str(failed)
    sentences = [f"Skipped: {each}: {why}" for each, why in skipped.items()]
    if not found:
        raise CannotProfile("\n".join(["nothing could be measured:", *sentences]))
    if as_json:
        levels = {
            each: [asdict(level) | {"tokens_per_s": level.rate} for level in of_side]
            for each, of_side in found.items()
        }
        print(json.dumps({"model": name, "sides": levels, "skipped": skipped}))
    else:
        made = table(name, found)
        print("\n".join([made.caption, "", *aligned(made), "", *verdict(found), *sentences]))
    return 0


def sides(names: Sequence[str], model: ModelSettings, skipped: dict[str, str]) -> Iterator[Side]:
    """Backends that are not installed go to `skipped`. Raises WrongArguments."""
    for wanted in dict.fromkeys(names) or (model.runtime,):
        name, _, precision = wanted.partition(":")
        known = [each for each in catalog.names(catalog.GENERATE) if each != "synthetic"]
        if name not in known and name != model.runtime:
            raise WrongArguments(f"--compare: is {name!r}; must be some of {', '.join(known)}")
        if missing := catalog.available(name, catalog.GENERATE):
            skipped[wanted] = missing
            continue
        kinds = {each.name for each in fields(catalog.options_class(name, catalog.GENERATE))}
        told = {key: value for key, value in model.options.items() if key in kinds}
        precision = precision or model.precision
        changes = {"runtime": name, "precision": precision, "options": told}
        try:
            catalog.check(name, told, precision, catalog.GENERATE)
        except LoadError as wrong:
            raise WrongArguments(f"--compare: {wanted}: {wrong}") from None
        yield Side(wanted, changes)
        if told.get(_SPECULATIVE):
            plain = {key: value for key, value in told.items() if key != _SPECULATIVE}
            yield Side(f"{wanted} without {_SPECULATIVE}", {**changes, "options": plain})


def verdict(found: dict[str, list[Level]]) -> Iterator[str]:
    """A sentence for each number of answers at which one side is faster."""
    levels = {name: {each.count: each for each in of_side} for name, of_side in found.items()}
    for count in COUNTS:
        here = {name: each[count] for name, each in levels.items() if count in each}
        if len(here) < 2:
            continue
        best = max(here, key=lambda name: here[name].rate)
        rest = [name for name in here if name != best]
        second = max(rest, key=lambda name: here[name].rate)
        if min(here[best].rates) > max(here[second].rates):
            times = here[best].rate / here[second].rate
            yield f"{count} at once: {best} is {times:.2f} times as fast as {second}."
        else:
            yield f"{count} at once: passes of {best} and {second} overlap."


def table(name: str, found: dict[str, list[Level]]) -> Table:
    return Table(
        f"{name}: {PROMPT} tokens read and {OUTPUT} written by each",
        ("side", "at once", "tokens/s", "by pass", "first token ms", "proposals kept"),
        tuple(
            (side, each.count, each.rate, f"{number(min(each.rates))}–{number(max(each.rates))}",
             each.first_s * 1e3,
             f"{each.accepted / each.drafted:.0%}" if each.drafted else "")
            for side, levels in found.items() for each in levels
        ),
    )  # fmt: skip


def _timed(side: Side, name: str, options: ProfileOptions, seconds: float) -> list[Level]:
    """Raises CannotProfile."""
    job = {
        "file": str(options.file), "name": name, "changes": side.changes, "seconds": seconds,
        "seed": options.seed,
    }  # fmt: skip
    answer = in_a_process(__name__, job, seconds)
    return [Level(**{**each, "rates": tuple(each["rates"])}) for each in answer]


# ---- in a process of its own --------------------------------------------------------------------


def main() -> None:
    """Times the job on standard input."""
    job = json.load(sys.stdin)
    chosen = ProfileOptions(Path(job["file"]), job["name"], job["seconds"], None, job["seed"])
    name, model = named(chosen)
    told = model.model_dump(mode="json", exclude_unset=True) | job["changes"]
    model = ModelSettings.model_validate(told)
    try:
        settings = runtime_settings(name, model, cache_dir(), lambda *_: None)
        backend_env.set_engine_variables(settings)
        levels = asyncio.run(_measured(catalog.create_stream(settings), name, chosen))
    except RuntimeFault as fault:
        raise SystemExit(str(fault)) from None
    print("\n" + json.dumps([asdict(each) for each in levels]))


async def _measured(runtime: StreamRuntime, name: str, options: ProfileOptions) -> list[Level]:
    """Passes over all numbers of answers that there is time for, the first of which does not
    count."""
    await runtime.load()
    try:
        await runtime.warm()
        limits = runtime.limits()
        prompt = min(PROMPT, limits.context_tokens - OUTPUT)
        if prompt < 1:
            raise LoadError(f"a prompt and {OUTPUT} tokens do not fit lengths.max")
        counts = [each for each in COUNTS if each <= limits.max_sequences]
        drawn, numbers = random.Random(options.seed), itertools.count()
        passes: list[dict[int, tuple[float, float, int, int]]] = []
        begin = perf_counter()
        while len(passes) < 3 or perf_counter() - begin < options.seconds:
            passes.append({})
            for count in counts:
                before, began = await runtime.health(), perf_counter()
                prompts = [[drawn.randrange(3, 200) for _ in range(prompt)] for _ in range(count)]
                firsts = await asyncio.gather(
                    *(_one(runtime, name, next(numbers), each) for each in prompts)
                )
                took_s, after = perf_counter() - began, await runtime.health()
                passes[-1][count] = (
                    count * OUTPUT / took_s, median(firsts),
                    after.drafted - before.drafted, after.accepted - before.accepted,
                )  # fmt: skip
                if len(passes) == 1 and perf_counter() - begin > options.seconds / 3:
                    counts = list(passes[0])  # for more at once there is no time
                    break
    finally:
        await runtime.close()
    counted = passes[1:]
    return [
        Level(
            count, tuple(each[count][0] for each in counted),
            median(each[count][1] for each in counted),
            sum(each[count][2] for each in counted), sum(each[count][3] for each in counted),
        )
        for count in counts
    ]  # fmt: skip


async def _one(runtime: StreamRuntime, model: str, number: int, prompt: list[int]) -> float:
    """Seconds to its first token."""
    asked = {
        "model": model,
        "prompt": prompt,
        "max_tokens": OUTPUT,
        "ignore_eos": True,
        "temperature": 0,
    }
    request = StreamRequest(f"profile-{number}", "completions", json.dumps(asked).encode())
    began, first_s = perf_counter(), 0.0
    async with aclosing(runtime.run(request)) as chunks:
        async for chunk in chunks:
            if chunk.status != 200:
                raise LoadError(f"the engine refused to be measured: {chunk.data.decode()}")
            if not first_s and chunk.output_tokens:
                first_s = perf_counter() - began
    return first_s


if __name__ == "__main__":
    main()
