"""The table of all backends, and whether a model's files fit the one that is to run them.

Only `create`, `create_stream`, `available` and `preload` need a backend's library. All other
functions answer without importing it, so that a settings file can be checked where the library is
not installed. A new backend is a new entry here and must pass the conformance suite
(`runtimes.testing`). One from elsewhere is an entry point of the group `headrace.runtimes`, which
names its `BackendEntry`.

`check_files` is asked before a process is started: is the artifact one that the runtime runs, is it
what its name says, does it hold code, is its architecture known, does it take rows of
`lengths.max`? What only the backend can tell still shows when a replica starts.
"""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import Any, cast

from runtimes import archive_text, calibration, folder
from runtimes import options as option_parser
from runtimes.equal_shapes import EqualShapes
from runtimes.errors import LoadError, MissingBackend, RefusedArtifact
from runtimes.generation import files as language_model
from runtimes.graph import bert
from runtimes.graph.options import GraphOptions
from runtimes.maxsim import MaxSim
from runtimes.source import (
    Source,
    SourceKind,
    all_files,
    check_weights,
    inspect_without_digest,
    streamed_weights,
)
from runtimes.staging import digest_of
from runtimes.types import PairPrompt, Runtime, RuntimeSettings, StreamRuntime, TokenVectors
from runtimes.vllm import inspection

GENERATE, RERANK = "generate", "rerank"
JUDGED_BY = "torch"  # the runtime of language models that rerank
GROUP = "headrace.runtimes"  # of entry points


JUDGES_READ = PairPrompt(  # Qwen3-Reranker's model card
    begins="<|im_start|>system\nJudge whether the Document meets the requirements based on the "
    'Query and the Instruct provided. Note that the answer can only be "yes" or "no".<|im_end|>\n'
    "<|im_start|>user\n<Instruct>: ",
    instruction="Given a web search query, retrieve relevant passages that answer the query",
    query="\n<Query>: ",
    document="\n<Document>:",
    ends="<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n",
)


@dataclass(frozen=True, slots=True)
class BackendEntry:
    """`module` holds `prefix`Runtime and `prefix`Options; `package` "" needs none; `kinds`: of
    artifacts that a batch backend runs, () for any file or folder; `install`: how to get it, where
    that is not by the extra of the same name."""

    module: str
    prefix: str
    package: str
    precisions: tuple[str, ...]
    install: str = ""
    kinds: tuple[SourceKind, ...] = ()


GPU_MEMORY = (
    "gpu_memory_mib"  # the most that a model takes of a GPU, where a backend can keep to it
)
_UNBOUNDED: Mapping[str, str] = {
    "openvino": "it runs on processors; replicas.memory_limit_mib bounds the process",
    "python": "a class allocates as it likes and can bound itself, such as by "
    "torch.cuda.set_per_process_memory_fraction in its load",
    "synthetic": "its device has no memory",
    "tensorrt": "its engines take what they are built for; lower batch.max_size and "
    "batch.max_tokens",
    "vllm": "set gpu_memory_utilization, a share of the GPU, or kv_cache_gib",
}
_GRAPHS = (SourceKind.HUGGING_FACE, SourceKind.ONNX)


ENTRIES: Mapping[str, BackendEntry] = {
    "onnxruntime": BackendEntry(
        "runtimes.onnxruntime.runtime", "ONNXRuntime", "onnxruntime",
        ("fp32", "fp16", "int8", "fp8"), kinds=_GRAPHS,
    ),
    "openvino": BackendEntry(
        "runtimes.openvino.runtime", "OpenVINO", "openvino", ("fp32", "bf16", "fp16", "int8"),
        kinds=(*_GRAPHS, SourceKind.OPENVINO_IR),
    ),
    "python": BackendEntry("runtimes.python.runtime", "Python", "", ("fp32",)),
    "synthetic": BackendEntry("runtimes.synthetic.runtime", "Synthetic", "", ("fp32",)),
    "tensorrt": BackendEntry(
        "runtimes.tensorrt.runtime", "TensorRT", "tensorrt",
        ("fp32", "fp16", "bf16", "int8", "fp8"), kinds=_GRAPHS,
    ),
    "torch": BackendEntry(
        "runtimes.torch.runtime", "Torch", "torch", ("fp32", "bf16", "fp16", "int8"),
        kinds=(SourceKind.HUGGING_FACE, SourceKind.TORCH_EXPORT),
    ),
}  # fmt: skip
STREAMS: Mapping[str, BackendEntry] = {
    "openvino": BackendEntry(
        "runtimes.openvino.stream", "OpenVINOStream", "openvino", ("fp32",),
        "pip install 'headrace[openvino,torch]'",
    ),
    "synthetic": BackendEntry("runtimes.synthetic.stream", "SyntheticStream", "", ("fp32",)),
    "torch": BackendEntry(
        "runtimes.torch.stream", "TorchStream", "torch", ("fp32", "bf16", "fp16"),
    ),
    "vllm": BackendEntry(
        "runtimes.vllm.runtime", "VLLM", "vllm", ("fp32", "bf16", "fp16"),
        "make vllm, or on a machine with a GPU pip install 'headrace[vllm]'",
    ),
}  # fmt: skip


def names(task: str = "tensors") -> tuple[str, ...]:
    """Of the backends that have the task; those from elsewhere last."""
    return (*_table(task), *(() if task == GENERATE else _elsewhere()))


def create(settings: RuntimeSettings) -> Runtime:
    """The backend, not yet loaded. Raises `LoadError` for what `check` would find, too, and
    `MissingBackend` where its package is not installed."""
    run = as_run(settings)
    plain = cast(Runtime, _made(run))
    if run.task != settings.task:
        tokens = token_vectors(settings.runtime, settings.source, settings.options)
        return plain if tokens is None else MaxSim(plain, tokens)
    return plain if settings.row_shapes is None else EqualShapes(plain, settings)


def as_run(settings: RuntimeSettings) -> RuntimeSettings:
    """With the task that the backend itself runs: to rerank, it classifies pairs or embeds tokens,
    unless a language model judges. Raises `LoadError`."""
    if settings.task != RERANK or pair_prompt(settings.runtime, settings.source) is not None:
        return settings
    tokens = token_vectors(settings.runtime, settings.source, settings.options)
    return replace(settings, task="classify" if tokens is None else "embed")


def pair_prompt(runtime: str, path: Path | None) -> PairPrompt | None:
    """What the language model in a folder reads to judge a pair; None where it is none."""
    return JUDGES_READ if runtime == JUDGED_BY and path and folder.judges(path) else None


def token_vectors(
    runtime: str, path: Path | None, options: Mapping[str, Any]
) -> TokenVectors | None:
    """How texts become rows, where the folder and the options say that each token has a vector.
    Raises `LoadError`."""
    runs_folders = SourceKind.HUGGING_FACE in entry_of(runtime).kinds
    if path is None or not runs_folders or not (path / "config.json").is_file():
        return None
    chosen = option_parser.parse(options_class(runtime), options)
    declared = folder.pooling_of(path, chosen.pooling, chosen.normalize)
    return declared.tokens if declared else None


def create_stream(settings: RuntimeSettings) -> StreamRuntime:
    """As `create`, for task `generate`."""
    return cast(StreamRuntime, _made(settings))


def _made(settings: RuntimeSettings) -> object:
    check(settings.runtime, settings.options, settings.precision, settings.task)
    missing = available(settings.runtime, settings.task)
    if missing:
        raise MissingBackend(missing)
    entry = entry_of(settings.runtime, settings.task)
    # Where rows have shapes of their own, what they are called by is no axis of theirs.
    own = settings if settings.row_shapes is None else replace(settings, max_length=None)
    made: object = getattr(importlib.import_module(entry.module), f"{entry.prefix}Runtime")(own)
    return made


def check(runtime: str, options: Mapping[str, Any], precision: str, task: str = "tensors") -> None:
    """Raises `LoadError` naming what is wrong and what would be right."""
    entry = entry_of(runtime, task)
    if precision not in entry.precisions:
        raise LoadError(f"{runtime} has no precision '{precision}', {_listed(entry.precisions)}")
    if GPU_MEMORY in options and runtime in _UNBOUNDED:
        raise LoadError(f"{runtime} has no option '{GPU_MEMORY}': {_UNBOUNDED[runtime]}")
    option_parser.parse(options_class(runtime, task), options)


def options_class(runtime: str, task: str = "tensors") -> type[Any]:
    """The dataclass of the backend's options."""
    entry = entry_of(runtime, task)
    cls: type[Any] = getattr(importlib.import_module(entry.module), f"{entry.prefix}Options")
    return cls


def gpus(runtime: str, options: Mapping[str, Any], task: str = "tensors") -> int | None:
    """Over how many GPUs a replica's options divide the model; None for a backend that divides
    none. Of options that `check` has passed."""
    chosen = option_parser.parse(options_class(runtime, task), options)
    shares = ("tensor_parallel_size", "pipeline_parallel_size")
    found = [int(getattr(chosen, name)) for name in shares if hasattr(chosen, name)]
    return math.prod(found) if found else None


def calibration_complaint(runtime: str, options: Mapping[str, Any], precision: str) -> str | None:
    """Why a backend of graphs cannot compute in this precision with these options, or what is wrong
    with its calibration; None where nothing is. Of batch runtimes, for options that `check` has
    passed."""
    chosen = option_parser.parse(options_class(runtime), options)
    if not isinstance(chosen, GraphOptions):
        return None
    return chosen.unfit(precision) or calibration.missing(precision, chosen)


def available(runtime: str, task: str = "tensors") -> str | None:
    """None, or the sentence that says what to install."""
    entry = entry_of(runtime, task)
    if not entry.package or importlib.util.find_spec(entry.package) is not None:
        return None
    how = entry.install or f"pip install 'headrace[{runtime}]'"
    return f"the {runtime} runtime needs its package: {how}"


def preload(runtime: str, task: str = "tensors") -> None:
    """Imports a backend with its library, so that loading a model later need not; nothing where
    that is not installed. Not for vllm, which reads its environment when it is imported."""
    entry = entry_of(runtime, task)
    module = importlib.import_module(entry.module)
    if entry.package and available(runtime, task) is None:
        own = getattr(module, "library", None)  # a backend's own way to its library goes first
        own() if own is not None else importlib.import_module(entry.package)


def digest(runtime: str, path: Path, cache_dir: Path | None = None, task: str = "tensors") -> str:
    """Of the model's files (`files`), 64 hexadecimal digits. Raises as `source.inspect`."""
    path = path.expanduser().absolute()
    base = path if path.is_dir() else path.parent
    return digest_of(files(runtime, path, task), base, cache_dir)


def files(runtime: str, path: Path, task: str = "tensors") -> tuple[Path, ...]:
    """Those that the model's kind of artifact has; where the backend takes any, all in the folder.
    Raises as `source.inspect`."""
    if task == GENERATE or entry_of(runtime, task).kinds:
        return inspect_without_digest(path).files
    return all_files(path)


def version(runtime: str, task: str = "tensors") -> str:
    """Of the backend's package as installed, without importing it; "" where it has none."""
    package = entry_of(runtime, task).package
    if not package:
        return ""
    for name in (package, *metadata.packages_distributions().get(package, ())):
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return ""


def _table(task: str) -> Mapping[str, BackendEntry]:
    return STREAMS if task == GENERATE else ENTRIES


def _elsewhere() -> dict[str, metadata.EntryPoint]:
    found = metadata.entry_points(group=GROUP)
    return {each.name: each for each in found if each.name not in {*ENTRIES, *STREAMS}}


def entry_of(runtime: str, task: str = "tensors") -> BackendEntry:
    """Raises `LoadError` for a name that nothing has, or whose package cannot be imported."""
    table = _table(task)
    if runtime in table:
        return table[runtime]
    point = None if task == GENERATE else _elsewhere().get(runtime)
    if point is not None:
        return _loaded(point)
    close = difflib.get_close_matches(runtime, table, n=1)
    hint = f"did you mean '{close[0]}'? " if close else ""
    raise LoadError(f"unknown runtime '{runtime}', {hint}{_listed(names(task))}")


def _loaded(point: metadata.EntryPoint) -> BackendEntry:
    try:
        entry = point.load()
    except Exception as error:
        raise LoadError(
            f"the runtime {point.name} ({point.value}) cannot be imported: "
            f"{type(error).__name__}: {error}"
        ) from error
    if not isinstance(entry, BackendEntry):
        raise LoadError(
            f"the entry point {point.name} = {point.value} of {GROUP} is no "
            "runtimes.catalog.BackendEntry"
        )
    return entry


def _listed(words: tuple[str, ...]) -> str:
    return f"known: {', '.join(words)}"


WORDS = {
    SourceKind.HUGGING_FACE: "Hugging Face folders",
    SourceKind.ONNX: "ONNX files",
    SourceKind.OPENVINO_IR: "OpenVINO IR (.xml)",
    SourceKind.TORCH_EXPORT: "torch.export archives (.pt2)",
}


@dataclass(frozen=True, slots=True)
class FileRequirements:
    """A model's settings that its files have to fit. `options`: as `catalog.check` passed them;
    `max_length`: None where rows have shapes of their own; `image_sizes`: (height, width), None for
    a model that takes no images."""

    runtime: str
    task: str
    options: Mapping[str, Any]
    precision: str
    max_length: int | None
    image_sizes: tuple[tuple[int, int], ...] | None = None


def check_files(path: Path, asked: FileRequirements) -> None:
    """Raises `LoadError`, of which `RefusedArtifact` is one."""
    runs = entry_of(asked.runtime, asked.task).kinds
    if not runs and asked.task != GENERATE:
        return
    if asked.task == GENERATE:
        if asked.runtime == "synthetic" or asked.options.get("trust_files"):
            return
        if not (path / "config.json").is_file():
            raise LoadError(
                f"{path} is no folder of a language model: it has no config.json; must be a folder "
                "as save_pretrained writes it, or hf:ORG/NAME@COMMIT"
            )
        inspection.check([str(path)])
        if asked.runtime == "vllm":
            inspection.check_quantisation(str(path), asked.options.get("quantization"))
        else:
            longest = language_model.check(path, asked.max_length, asked.runtime)
            chosen = option_parser.parse(options_class(asked.runtime, GENERATE), asked.options)
            chosen.shape(longest)
        check_streamed_weights(asked.runtime, path, asked.options)
        return
    source = inspect_without_digest(path)
    if source.kind not in runs:
        others = [name for name, entry in ENTRIES.items() if source.kind in entry.kinds]
        raise LoadError(
            f"{asked.runtime} runs {', '.join(WORDS[kind] for kind in runs)}; {path} is of another "
            f"kind, which {' and '.join(others)} can run"
        )
    if source.kind is SourceKind.HUGGING_FACE:
        _check_folder(source, asked)
    elif source.kind is SourceKind.TORCH_EXPORT:
        if asked.precision != "fp32":
            raise LoadError(
                f"{source.path} runs in the precision that it was exported in; leave precision out"
            )
        wrong = archive_text.unsafe_in(source.path)
        if wrong is not None:
            raise RefusedArtifact(f"{source.path}: its graph could run code, it contains {wrong}")


def check_streamed_weights(runtime: str, path: Path, options: Mapping[str, Any]) -> None:
    """Of a folder of task `generate`: raises `LoadError` for weights that are cut off."""
    if runtime == "synthetic" or options.get("trust_files"):
        return
    for file in streamed_weights(path):
        check_weights(file)


def _check_folder(source: Source, asked: FileRequirements) -> None:
    chosen = option_parser.parse(options_class(asked.runtime), asked.options)
    declared = folder.pooling_of(source.path, chosen.pooling, chosen.normalize)
    judged = asked.task == RERANK and folder.judges(source.path)
    if judged and asked.runtime != JUDGED_BY:
        raise LoadError(
            f"{source.path} is a language model ({folder.JUDGES}); with task rerank it runs "
            f"with runtime {JUDGED_BY} alone"
        )
    task = asked.task
    if task == RERANK and not judged:
        task = "embed" if declared and declared.tokens else "classify"
    folder.check(source.path, task if task == "embed" else asked.task, asked.image_sizes)
    pooled = [name for name in ("pooling", "normalize") if asked.options.get(name)]
    if pooled and (judged or task == "classify"):
        raise LoadError(
            f"option {pooled[0]} is for embeddings, and task {asked.task} reads the model's "
            "scores; leave the option out"
        )
    if declared and task in ("embed", "tensors"):
        _check_dense(source.path, declared)
    longest, taken = asked.max_length, source.longest
    if longest is not None and taken is not None and longest > taken:
        raise LoadError(
            f"{source.path} takes rows of {taken} tokens at most, lengths.max is {longest}; set "
            f"lengths.max to {taken} or less"
        )
    folder.check_pooling(source.path, task, declared)
    if bert.is_built(source.path, task, declared):
        bert.read_config(source.path)


def _check_dense(path: Path, pooling: folder.Pooling) -> None:
    """Raises `LoadError` for a Dense module that reads vectors of another width than those are that
    the encoder's pooling, or the Dense module before it, makes."""
    config = folder.configuration(path)
    names = ("dim", "hidden_size") if config.get("model_type") == "distilbert" else ("hidden_size",)
    hidden = next((config[name] for name in names if name in config), None)
    width = hidden * max(1, len(pooling.modes)) if type(hidden) is int else None
    for dense in pooling.dense:
        if width is not None and dense.inputs != width:
            raise LoadError(
                f"{dense.folder / 'config.json'}: in_features is {dense.inputs}, and the vectors "
                f"that it gets have {width} numbers; the folder's files must be of one model, so "
                "fetch it again"
            )
        width = dense.outputs
