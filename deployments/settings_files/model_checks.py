"""Checks of a model's settings that need this machine or the backend: artifact, inputs, options.

`load.load` runs them for every model whose own section is valid, so that these mistakes are
reported together with all others.
"""

from __future__ import annotations

import pathlib
from collections.abc import Callable
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from deployments.settings import model_paths, python_source, remote_source
from deployments.settings.accept import PATHS
from deployments.settings.groups import MIG_RESOURCE
from deployments.settings.image import ImageSettings
from deployments.settings.model import ModelSettings
from deployments.settings.remote_source import SourceError
from deployments.settings_files import sources
from yaml_document.document import Document
from yaml_document.mistakes import Mistake

if TYPE_CHECKING:
    from runtimes import catalog

Path = tuple[str | int, ...]


def model_mistakes(document: Document, *, here: bool) -> list[Mistake]:
    """All mistakes of all models. `here`: the models will run on this machine, so their files and
    packages must be on it."""
    models = document.data.get("models")
    mistakes: list[Mistake] = []
    for name, raw in models.items() if isinstance(models, dict) else ():
        try:
            model = ModelSettings.model_validate(raw)
        except ValidationError:
            continue
        complaints: list[tuple[Path, str]] = [
            *_source_complaints(model, here),
            *_group_complaints(model, here),
            *_accept_complaints(model, here),
            *_adapter_complaints(model, here),
            *_zero_complaints(model),
        ]
        mistakes += [document.mistake(("models", name, *at), message) for at, message in complaints]
    return mistakes


def misplaced_option(document: Document, at: Path) -> str | None:
    """Of a key that a model does not have: where it belongs, if it is an option of the model's
    runtime. `at`: its path."""
    if len(at) != 3 or at[0] != "models":
        return None
    from runtimes import catalog
    from runtimes.errors import LoadError

    raw, key = document.data["models"][at[1]], str(at[2])
    runtime = str(raw.get("runtime"))
    try:
        known = fields(catalog.options_class(runtime, str(raw.get("task"))))
    except LoadError:
        return None
    if key not in {field.name for field in known}:
        return None
    return f"is an option of runtime {runtime}; must be in options: {{{key}: …}}"


def _zero_complaints(model: ModelSettings) -> list[tuple[Path, str]]:
    """A model that may have no replica at all (in any group) needs the autoscaler, because nothing
    else starts a replica. One group may have none while another has some."""
    mode = model.scaling.resolved_policy().get("mode", "enforce")
    replicas = [view.replicas for view in model.views().values()] or [model.replicas]
    if mode == "enforce" or any(each.least for each in replicas):
        return []
    return [
        (
            ("scaling",),
            f"has mode {mode}, but replicas.min is 0: nothing would ever start a replica; must be "
            "mode enforce, or min at least 1",
        )
    ]


def _source_complaints(model: ModelSettings, here: bool) -> list[tuple[Path, str]]:
    """Remote sources are not fetched here: the replica that starts reports what is wrong with
    them."""
    if model.source is None:
        return []
    if model.runtime == "python" and here and not remote_source.is_remote(model.source):
        return _class_complaints(model)
    if wrong := sources.check(model.source, here=here):
        return [(("source",), wrong)]
    if remote_source.is_remote(model.source) or not here:
        return []
    # Imported late, for the reason in `_backend_complaints`.
    from deployments.settings_files import preprocessing_support
    from runtimes import catalog, fingerprint
    from runtimes.errors import LoadError

    path = sources.resolve(model.source)
    try:
        whole = preprocessing_support.with_image(model, path)
        preprocessing_support.check(whole, path)
        for view in model.views().values() or (model,):
            if not _backend_complaints(view, here=False):
                catalog.check_files(path, _asked(view, whole.image))
        if model.task == "rerank" and fingerprint.beside(path, "tokenizer.json") is None:
            wrong = f"{path} has no tokenizer.json, which task rerank needs; add the model's own"
            return [(("source",), wrong)]
        return _label_complaints(model, path)
    except LoadError as error:
        return [(("source",), str(error))]


def _label_complaints(model: ModelSettings, path: pathlib.Path) -> list[tuple[Path, str]]:
    """Of a classifier's folder: labels as many as its `config.json` says that it has classes."""
    from runtimes import folder

    labels, file = model.classify.labels, path / "config.json"
    if not file.is_file():
        return []
    config = folder.configuration(path)
    named, number = config.get("id2label"), config.get("num_labels")
    classes = len(named) if isinstance(named, dict) and named else number
    if type(classes) is not int:
        return []
    heads = str(config.get("architectures"))
    if model.task == "rerank" and classes > 1 and "ForSequenceClassification" in heads:
        wrong = f"is rerank, and {file} says {classes} classes, not one score for a pair"
        return [(("task",), f"{wrong}; must be classify, or source a model that reranks")]
    if labels is None or classes == len(labels):
        return []
    names = f" ({', '.join(map(str, named.values()))})" if isinstance(named, dict) else ""
    return [
        (
            ("classify", "labels"),
            f"has {len(labels)} labels, and {file} says {classes} classes{names}; must be "
            f"{classes} labels in the model's order, or left out",
        )
    ]


def _class_complaints(model: ModelSettings) -> list[tuple[Path, str]]:
    """Of a Python class on this machine, without running its code."""
    from headrace import loading

    found = python_source.python_class(model.source or "")
    assert found is not None  # or the model's own section is not valid
    try:
        folder = sources.resolve(model.source or "") if found.folder else None
    except SourceError as error:
        return [(("source",), str(error))]
    wrong = loading.complaint(folder, found.module, found.name, bool(model.dependencies))
    return [(("source",), wrong)] if wrong else []


def _asked(model: ModelSettings, image: ImageSettings | None) -> catalog.FileRequirements:
    from runtimes import catalog

    said = model.lengths.max_is_said and model.image is None
    longest = model.lengths.max if said else None  # else what the files say counts
    return catalog.FileRequirements(
        model.runtime, model.task, model.options, model.precision, longest,
        None if image is None else image.sizes,
    )  # fmt: skip


def _group_complaints(model: ModelSettings, here: bool) -> list[tuple[Path, str]]:
    """What is wrong with the backend of the model, or of each of its groups. If a group does not
    set the field itself, the mistake is reported at the model's field. Groups may run on other
    machines, so packages are not looked for."""
    groups = model.replicas.groups
    if not groups:
        return _backend_complaints(model, here)
    views, found = model.views(), dict[Path, str]()
    for position, group in enumerate(groups):
        for at, message in _backend_complaints(views[group.name], here=False):
            own = getattr(group, str(at[0])) is not None
            found[("replicas", "groups", position, *at) if own else at] = message
    return list(found.items())


def _backend_complaints(model: ModelSettings, here: bool) -> list[tuple[Path, str]]:
    # Imported late: `catalog` imports numpy, which a process that reads only tenants does not need.
    from runtimes import catalog
    from runtimes.errors import LoadError

    # First without options, so that what the second check refuses can only be an option.
    for at, options in (("precision", {}), ("options", model.options)):
        try:
            catalog.check(model.runtime, options, model.precision, model.task)
        except LoadError as error:
            return [((at,), str(error))]
    if too_large := _beyond_slice(model) or _unlike_gpus(model):
        return [(("options",), too_large)]
    generates = model.task == catalog.GENERATE
    if generates and model.runtime == "openvino" and model.replicas.num_gpus:
        words = "generates on processors; must be torch or vllm, or replicas.num_gpus must be 0"
        return [(("runtime",), f"is {model.runtime}, which {words}")]
    wrong = (
        None
        if generates
        else catalog.calibration_complaint(model.runtime, model.options, model.precision)
    )
    if wrong:
        return [(("options",), wrong)]
    missing = catalog.available(model.runtime, model.task) if here else None
    absent: list[tuple[Path, str]] = [(("runtime",), missing)] if missing else []
    return [*absent, *_option_complaints(model, here)]


def _beyond_slice(model: ModelSettings) -> str | None:
    """Why `gpu_memory_mib` is more than the MIG slice has that the replicas ask for. A slice has a
    little less than its name says."""
    from runtimes import catalog

    bound = model.options.get(catalog.GPU_MEMORY)
    if bound is None:
        return None
    for name in model.replicas.resources:
        found = MIG_RESOURCE.fullmatch(name)
        most_mib = int(found.group(2).removesuffix("gb")) * 1024 if found else None
        if most_mib is not None and bound > most_mib:
            return (
                f"option '{catalog.GPU_MEMORY}' is {bound}, but a slice of {name} has less than "
                f"{most_mib} MiB"
            )
    return None


def _unlike_gpus(model: ModelSettings) -> str | None:
    """Why a replica has not the GPUs that its options divide the model over. One without any runs
    on processors, and one with a share of a GPU has one."""
    from runtimes import catalog

    wanted, given = catalog.gpus(model.runtime, model.options, model.task), model.replicas.num_gpus
    if wanted is None:
        return None
    if wanted > 1 and any(MIG_RESOURCE.fullmatch(name) for name in model.replicas.resources):
        return "divides the model over GPUs, and MIG slices cannot reach each other's memory"
    if given == 0 or wanted == max(given, 1):
        return None
    return (
        f"tensor_parallel_size times pipeline_parallel_size is {wanted}, and replicas.num_gpus is "
        f"{given:g}; both must be the same"
    )


def _adapter_complaints(model: ModelSettings, here: bool) -> list[tuple[Path, str]]:
    """Of each adapter that is on this machine. What is wrong with a remote one is known when it is
    asked for."""
    from runtimes import adapter_files
    from runtimes.errors import LoadError

    complaints: list[tuple[Path, str]] = []
    base, given = model.source, model.options.get("max_lora_rank")
    known = here and base is not None and not remote_source.is_remote(base)
    known = known and model.runtime != "synthetic" and sources.check(base or "", here=here) is None
    folder = sources.resolve(base or "") if known else None
    for name, source in model.adapters.items():
        wrong = sources.check(source, here=here)
        if wrong is None and here and not remote_source.is_remote(source):
            try:
                most = given if type(given) is int else adapter_files.RANKS[-1]
                adapter_files.check(sources.resolve(source), folder, most)
            except LoadError as error:
                wrong = str(error)
        if wrong:
            complaints.append((("adapters", name), wrong))
    return complaints


def _accept_complaints(model: ModelSettings, here: bool) -> list[tuple[Path, str]]:
    from deployments.settings.reference import CannotVerify, parse_reference

    accept = model.accept
    complaints: list[tuple[Path, str]] = []
    if accept.against is not None:
        try:
            parse_reference(accept.against, here=here)
        except CannotVerify as error:
            complaints.append((("accept", "against"), str(error)))
    for name in PATHS:
        path = getattr(accept, name)
        wrong = None if path is None else sources.check(path, here=here)
        if wrong:
            complaints.append((("accept", name), wrong))
    return complaints


def _option_complaints(model: ModelSettings, here: bool) -> list[tuple[Path, str]]:
    """Of paths in options. Rows of a calibration need not be recorded yet: of those, URLs alone are
    looked at."""
    complaints: list[tuple[Path, str]] = []
    for name, named in model_paths.in_options(model.options):
        plain = name == "calibration" and not remote_source.is_url(named)
        wrong = None if plain else sources.check(named, here=here)
        if wrong is None and here and name != "calibration":
            wrong = _unlike(name, named, trusted=bool(model.options.get("trust_files")))
        if wrong:
            complaints.append((("options", name), wrong))
    return complaints


def _unlike(name: str, named: str, *, trusted: bool) -> str | None:
    """What is wrong with what is at a path, which is there unless it is remote. `trusted`: models'
    folders may hold code."""
    from runtimes.vllm import inspection

    if remote_source.is_remote(named):
        return None
    path = sources.resolve(named)
    if name == "chat_template":
        if not path.is_file():
            return f"{path} is no file; must be one with a Jinja template"
        return _complaint(inspection.check_template, str(path))
    if not path.is_dir():
        return f"{path} is no folder; must be one"
    if name == model_paths.DRAFT:
        if not (path / "config.json").is_file():
            return f"{path} is no folder of a draft model: it has no config.json"
        return None if trusted else _complaint(inspection.check, [str(path)])
    return None


def _complaint(check: Callable[[Any], None], of: Any) -> str | None:
    from runtimes.errors import LoadError

    try:
        check(of)
    except LoadError as wrong:
        return str(wrong)
    return None
