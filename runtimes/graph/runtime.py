"""What all backends that run a stored graph share, from load to close.

`GraphRuntime` is `types.Runtime` around an `Engine`, the few calls that differ: run dense arrays,
free them. It makes the signature, finds the outputs' length axes, pads and cuts, warms up over the
grid, takes the time of each stage and decides whether the engine is still well.

It knows no library. Whatever an engine raises other than our own faults is mapped by the engine.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from time import perf_counter
from typing import Any, Protocol

import numpy as np

from runtimes import calibration, exporting, rows, warmup
from runtimes.errors import LoadError, OutOfMemory, RunError, Unhealthy
from runtimes.folder import pooling_of
from runtimes.graph import dense
from runtimes.graph.bert import is_built
from runtimes.graph.dense import GraphFacts, Signature, declare, probe_lengths, with_length_axes
from runtimes.graph.options import GraphOptions, check_layout
from runtimes.host import allowed_cpus
from runtimes.source import Source, SourceKind, inspect
from runtimes.types import Batch, Limits, Result, RuntimeSettings, StageTimes

Array = np.ndarray[Any, Any]


class Engine(Protocol):
    """An opened graph. `infer`: arrays by input name in, one array each of `outputs` out, owned by
    the caller; adds to copy_in_s, run_s and copy_out_s; raises `RunError` or `BadRows`. `prepare`:
    the last step of loading, makes the engine ready for these shapes and answers the lengths that
    it pads to, none where any will do; before it the engine runs any shape."""

    facts: GraphFacts
    platform: str
    device: str

    def infer(
        self, arrays: Mapping[str, Array], outputs: Sequence[str], times: StageTimes
    ) -> list[Array]: ...

    def prepare(self, limits: Limits) -> tuple[int, ...]: ...

    def close(self) -> None: ...


class GraphRuntime(ABC):
    """A batch runtime; one thread at a time."""

    def __init__(self, settings: RuntimeSettings, options: GraphOptions) -> None:
        if settings.task not in ("tensors", "embed", "classify"):
            raise LoadError(
                f"task '{settings.task}': {settings.runtime} has tensors, embed, classify"
            )
        self._settings = settings
        self._options = options
        self._engine: Engine | None = None
        self._signature: Signature | None = None
        self._last = warmup.LastRun()

    @abstractmethod
    def _open(self) -> Engine:
        """Stages, compiles and opens the graph, with progress; raises `LoadError`."""

    def load(self) -> None:
        """Raises `LoadError`; after it the limits are known and `run` may be called."""
        try:
            engine = self._open()
        except OutOfMemory as error:
            raise LoadError(str(error)) from error
        try:
            self._engine = engine
            self._signature = self._fixed(engine, self._sign(engine))
        except RunError as error:
            self.close()
            raise LoadError(f"the model does not run: {error}") from error
        except BaseException:
            self.close()
            raise

    def warm(self) -> None:
        """Runs the grid of edges x sizes; after `warm_s` seconds nothing new is started."""
        warmup.warm(self._settings, self.limits(), self.run, self._options.warm_s)

    def limits(self) -> Limits:
        return self._opened()[1].limits

    def run(self, batch: Batch) -> Result:
        engine, signature = self._opened()
        wanted = rows.wanted(batch, signature.limits)
        times = StageTimes()
        begin = perf_counter()
        arrays, longest = dense.feed(batch, signature)
        times.pad_s = perf_counter() - begin
        self._last.failed()  # until it has answered
        found = engine.infer(arrays, wanted, times)
        self._last.answered()
        begin = perf_counter()
        specs = {spec.name: spec for spec in signature.limits.outputs}
        outputs = {
            name: dense.rows_of(array, specs[name], batch, signature)
            for name, array in zip(wanted, found, strict=True)
        }
        times.post_s = perf_counter() - begin
        return Result(outputs, times, (signature.fixed_rows or batch.rows) * longest)

    def health(self) -> None:
        """Raises `Unhealthy` when nothing is loaded, or when after a failed batch the smallest
        possible one fails too, see `LastRun`."""
        if self._engine is None:
            raise Unhealthy("the model is not loaded")
        self._last.check(self._run_smallest)

    def _run_smallest(self) -> None:
        limits = self.limits()
        self.run(warmup.batch(limits, 1, probe_lengths(limits, self._smallest_edge())[1]))

    def close(self) -> None:
        engine, self._engine, self._signature = self._engine, None, None
        if engine is not None:
            engine.close()

    def _sign(self, engine: Engine) -> Signature:
        multiple = self._options.pad_multiple
        signature = declare(engine.facts, self._settings, engine.platform, multiple)
        if signature.limits.length_input is None:
            return signature
        lengths = probe_lengths(signature.limits, self._smallest_edge())
        short, long = (self._probe(engine, signature, length) for length in lengths)
        return with_length_axes(signature, lengths, (short, long))

    def _fixed(self, engine: Engine, signature: Signature) -> Signature:
        signature = replace(signature, limits=replace(signature.limits, device=engine.device))
        limits = signature.limits
        check_layout(self._options.layout, limits.inputs)
        edges = engine.prepare(limits)
        if not edges:
            return signature
        longest = limits.max_length or edges[-1]
        return replace(signature, limits=replace(limits, fixed_edges=edges, max_length=longest))

    def _probe(self, engine: Engine, signature: Signature, length: int) -> list[tuple[int, ...]]:
        """The outputs' shapes for one row of exactly this length."""
        exact = Signature(signature.limits, {}, signature.fixed_rows)
        arrays, _ = dense.feed(warmup.batch(signature.limits, 1, length), exact)
        names = [spec.name for spec in signature.limits.outputs]
        return [array.shape for array in engine.infer(arrays, names, StageTimes())]

    def _opened(self) -> tuple[Engine, Signature]:
        if self._engine is None or self._signature is None:
            raise Unhealthy("the model is not loaded")
        return self._engine, self._signature

    def _smallest_edge(self) -> int:
        return min(self._settings.edges, default=16)

    def _source(self) -> Source:
        """Raises `LoadError`."""
        settings = self._settings
        if settings.source is None:
            raise LoadError(f"the {settings.runtime} runtime needs a source")
        return inspect(settings.source, settings.cache_dir)

    def _graph_key(self, source: Source) -> str:
        """What of the settings shapes the graph, for the key of a staged entry."""
        chosen, mask = self._options, self._settings.mask_input
        kept = f"{' '.join(chosen.keep_fp32)} {calibration.identity(chosen, self._settings)}"
        said = f"{chosen.pooling} {chosen.normalize} {chosen.embed_output} {mask} {kept}"
        if source.kind is not SourceKind.HUGGING_FACE:
            return said
        declared = pooling_of(source.path, chosen.pooling, chosen.normalize)
        if is_built(source.path, self._settings.task, declared):
            return said
        return " ".join((said, *exporting.key(source, self._settings, chosen)))

    def _threads(self) -> int:
        return self._settings.threads or allowed_cpus()
