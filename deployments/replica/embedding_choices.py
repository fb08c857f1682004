"""What requests for embeddings may choose, from the files of a sentence-transformers folder.

`config_sentence_transformers.json` has prompts by name, the default one's name and `truncate_dim`;
`config.json` has `matryoshka_dimensions`. Beside a file, or above one in `onnx/` or `openvino/`,
they count as in its folder.

Source: sentence-transformers 6.2, `SentenceTransformer`; vLLM 0.32, `is_matryoshka`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from deployments.contract.description import EmbeddingChoices
from runtimes import fingerprint, folder
from runtimes.errors import LoadError

FILE = "config_sentence_transformers.json"
MAX_PROMPTS = 100
MAX_CHARACTERS = 10_000  # of one prompt


def read(source: Path | None, width: int) -> EmbeddingChoices:
    """`width`: numbers in an embedding. Raises `LoadError` for what could not be obeyed."""
    file, said = _read(source, FILE)
    prompts = said.get("prompts") or {}
    if not isinstance(prompts, dict) or not all(isinstance(text, str) for text in prompts.values()):
        raise LoadError(f"{file}: prompts must be texts by their names")
    if len(prompts) > MAX_PROMPTS or any(len(text) > MAX_CHARACTERS for text in prompts.values()):
        raise LoadError(
            f"{file}: prompts may be {MAX_PROMPTS}, of {MAX_CHARACTERS} characters each"
        )
    default = said.get("default_prompt_name") or ""
    if default and default not in prompts:
        raise LoadError(f"{file}: default_prompt_name is {default!r}, which is no name in prompts")
    cut = said.get("truncate_dim") or 0
    _check(file, "truncate_dim", cut, width)
    config, trained = _read(source, "config.json")
    dimensions = trained.get("matryoshka_dimensions") or ()
    for each in dimensions if isinstance(dimensions, list | tuple) else (dimensions,):
        _check(config, "matryoshka_dimensions", each, width)
    return EmbeddingChoices(dict(prompts), default, tuple(sorted(set(dimensions))), cut)


def _check(file: Path | None, field: str, value: Any, width: int) -> None:
    if type(value) is not int or not 0 <= value <= width:
        raise LoadError(f"{file}: {field} has {value!r}; the model gives {width} numbers a text")


def _read(source: Path | None, name: str) -> tuple[Path | None, dict[str, Any]]:
    file = None if source is None else fingerprint.beside(source, name)
    found = {} if file is None else folder.read(file)
    if not isinstance(found, dict):
        raise LoadError(f"{file} is no JSON object")
    return file, found
