"""Whether reading a model's folder would run what is in it: looked at before vLLM is imported.

Python files and `auto_map` name code that comes with a model; a pickle is code in itself, and what
restricts its reading was got around more than once. Weights are read as safetensors or GGUF. What
is no folder here (a single file, a name that vLLM would look up in Hugging Face's cache) or cannot
be looked through is refused: nobody has seen what is in it. Also whether a chat template is one,
and whether weights are quantised as the options say.
Source: vLLM CVE-2025-66448, CVE-2026-22807; torch CVE-2025-32434, CVE-2026-24747.
"""

from __future__ import annotations

import importlib.util
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from runtimes.errors import LoadError

_CODE = (".py", ".pyc", ".so", ".pyd")
_PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle", ".joblib", ".npy", ".npz")
_MAX_BYTES = 256 << 20
_LARGEST_DEPTH = 64
_MAX_TEMPLATE_BYTES = 1 << 20
_MODELOPT = "hf_quant_config.json"
_GPTQ, _AWQ = ("gptq", "auto_gptq", "gptq_marlin"), ("awq", "auto_awq", "awq_marlin")
# What a folder says of its weights, and the options that run them. Of others vLLM decides.
_RUN_BY: Mapping[str, tuple[str, ...]] = {
    "gptq": (*_GPTQ, "moe_wna16", "inc", "humming"),
    "awq": (*_AWQ, "moe_wna16", "inc", "humming"),
    "compressed-tensors": ("compressed-tensors", "humming"),
    "fp8": ("fp8", "deepseek_v4_fp8", "humming"),
}
_MADE_BEFORE = (*_GPTQ, *_AWQ, "compressed-tensors", "quark")  # not as weights are loaded
# Of transformers, which vLLM 0.32 does not run.
_UNKNOWN = frozenset(
    {"aqlm", "bitnet", "bitsandbytes", "eetq", "higgs", "hqq", "quanto", "spqr", "vptq"}
)


def check(folders: Iterable[str], *, may_trust: bool = True) -> None:
    """Raises LoadError that names the file and what would be right. `may_trust`: whether that may
    be the option `trust_files`."""
    for folder in folders:
        if not os.path.isdir(folder):
            trust = ", or set options.trust_files if you know what it is" if may_trust else ""
            raise LoadError(
                f"{folder} is no folder on this machine, so nothing in it can be looked at; must "
                f"be the model's folder{trust}"
            )
        for path, why in _dangers(Path(folder)):
            trust = ", or set options.trust_files if you know what is in it" if may_trust else ""
            raise LoadError(
                f"{path} {why}; convert the model to safetensors without code of its own{trust}"
            )


def _dangers(folder: Path) -> Iterator[tuple[str, str]]:
    for root, _, names in os.walk(folder, onerror=_refuse):
        for name in sorted(names):
            path = os.path.join(root, name)
            if name.lower().endswith(_CODE):
                yield path, "is code"
            elif name.lower().endswith(_PICKLES):
                yield path, "is a pickle, or may hold one"
            elif name.lower().endswith(".json") and _names_code(path):
                yield path, "has an auto_map, which names code to run"


def _refuse(fault: OSError) -> None:
    raise LoadError(f"{fault.filename} cannot be looked through: {fault.strerror}") from None


def _names_code(path: str) -> bool:
    """Raises LoadError for what is no JSON."""
    if os.path.getsize(path) > _MAX_BYTES:
        raise LoadError(f"{path} is larger than {_MAX_BYTES} bytes; a model's settings are not")
    try:
        with open(path, encoding="utf-8") as file:
            return _has_auto_map(json.load(file), 0)
    except (ValueError, RecursionError) as fault:
        raise LoadError(f"{path} is no JSON: {fault}") from None


def _has_auto_map(value: object, depth: int) -> bool:
    if depth > _LARGEST_DEPTH:
        raise LoadError("a model's settings are nested too deeply")
    if isinstance(value, dict):
        # A vocabulary may have the word, with a number.
        return isinstance(value.get("auto_map"), dict | list | str) or any(
            _has_auto_map(each, depth + 1) for each in value.values()
        )
    return isinstance(value, list) and any(_has_auto_map(each, depth + 1) for each in value)


def check_template(path: str) -> None:
    """Raises LoadError for a file that is none of a chat template, or one that does not parse."""
    try:
        if os.path.getsize(path) > _MAX_TEMPLATE_BYTES:
            raise LoadError(f"{path} is larger than {_MAX_TEMPLATE_BYTES} bytes, for a template")
        text = Path(path).read_text(encoding="utf-8")
    except OSError as fault:
        raise LoadError(f"{path} cannot be read: {fault.strerror}") from None
    except UnicodeDecodeError:
        raise LoadError(f"{path} is no text of a template: it is not UTF-8") from None
    if importlib.util.find_spec("jinja2") is None:
        return  # the engine says what is wrong with it
    from jinja2 import TemplateError

    try:
        _jinja().compile(text)
    except TemplateError as fault:
        line = getattr(fault, "lineno", None)
        at = f", line {line}" if line else ""
        raise LoadError(f"{path} is no Jinja template{at}: {fault}") from None
    except (RecursionError, SyntaxError) as fault:
        raise LoadError(f"{path} is no Jinja template: {type(fault).__name__}") from None


def _jinja() -> Any:
    """The environment that transformers reads templates in, with its own tag `generation`."""
    from jinja2 import pass_context
    from jinja2.ext import Extension, loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(Extension):
        tags = {"generation"}  # noqa: RUF012 - as Jinja declares it

        def parse(self, parser: Any) -> Any:
            parser.stream.expect("name:generation")
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    @pass_context
    def as_it_is(_: Any, value: Any) -> Any:
        return value

    # Nothing is worked out that is constant, such as a text a billion times: it is only compiled.
    return ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols],
        optimized=False, finalize=as_it_is,
    )  # fmt: skip


def check_quantisation(folder: str, chosen: str | None) -> None:
    """Raises LoadError where the folder's weights are not quantised as the option says, or as vLLM
    cannot run them."""
    path = Path(folder, "config.json")
    if not path.is_file():
        return
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as fault:
        raise LoadError(f"{path} is no JSON: {fault}") from None
    said = config.get("quantization_config") if isinstance(config, dict) else None
    said = said or (config.get("compression_config") if isinstance(config, dict) else None)
    method = said.get("quant_method") if isinstance(said, dict) else None
    if not isinstance(method, str):
        if said is None and chosen in _MADE_BEFORE and not Path(folder, _MODELOPT).is_file():
            raise LoadError(
                f"option 'quantization' is {chosen}, and {path} has no quantization_config: its "
                "weights are not quantised; leave the option out, or quantise them first"
            )
        return
    method = method.lower().replace("compressed_tensors", "compressed-tensors")
    if method in _UNKNOWN:
        raise LoadError(
            f"{path}: its weights are quantised by {method}, which vLLM does not run; convert them "
            f"to {', '.join(_RUN_BY)}"
        )
    run_by = _RUN_BY.get(method, ())
    if chosen is not None and run_by and chosen not in run_by:
        raise LoadError(
            f"option 'quantization' is {chosen}, and {path} says {method}; must be "
            f"{' or '.join(run_by)}, or left out"
        )
