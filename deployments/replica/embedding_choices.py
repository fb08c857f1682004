"""What requests for embeddings may choose, from the files of a sentence-transformers folder.

`config_sentence_transformers.json` has prompts by name, the default one's name and `truncate_dim`,
or of a sparse model `max_active_dims`; the prompts of a model with a vector for each token may
stand elsewhere (`runtimes.folder`). `config.json` has `matryoshka_dimensions`. Beside a file, or
above one in `onnx/` or `openvino/`, they count as in its folder.

Source: sentence-transformers 6.2, `SentenceTransformer`; vLLM 0.32, `is_matryoshka`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from deployments.contract.description import EmbeddingChoices
from runtimes import fingerprint, folder
from runtimes.errors import LoadError
from runtimes.types import TokenVectors

FILE = folder.CHOICES
MAX_PROMPTS = 100
MAX_CHARACTERS = 10_000  # of one prompt


def read(
    source: Path | None, width: int, indices: str = "", tokens: TokenVectors | None = None
) -> EmbeddingChoices:
    """`width`: numbers in an embedding; `indices`: the output with those of a sparse one; `tokens`:
    of a model with a vector for each. Neither has other widths. Raises `LoadError` for what could
    not be obeyed."""
    file, said = _read(source, FILE)
    prompts = dict(tokens.prompts) if tokens and tokens.prompts else said.get("prompts") or {}
    if not isinstance(prompts, dict) or not all(isinstance(text, str) for text in prompts.values()):
        raise LoadError(f"{file}: prompts must be texts by their names")
    if len(prompts) > MAX_PROMPTS or any(len(text) > MAX_CHARACTERS for text in prompts.values()):
        raise LoadError(
            f"{file}: prompts may be {MAX_PROMPTS}, of {MAX_CHARACTERS} characters each"
        )
    default = said.get("default_prompt_name") or ""
    if default and (not isinstance(default, str) or default not in prompts):
        raise LoadError(f"{file}: default_prompt_name is {default!r}, which is no name in prompts")
    if indices:
        most = _widths(file, "max_active_dims", said.get("max_active_dims"), width)
        return EmbeddingChoices(dict(prompts), default, (), max(most, default=0), indices)
    if tokens:
        return EmbeddingChoices(dict(prompts), default)
    cut = _widths(file, "truncate_dim", said.get("truncate_dim"), width)
    config, trained = _read(source, "config.json")
    field = "matryoshka_dimensions"
    return EmbeddingChoices(
        dict(prompts),
        default,
        _widths(config, field, trained.get(field), width),
        max(cut, default=0),
    )


def _widths(file: Path | None, field: str, said: Any, width: int) -> tuple[int, ...]:
    """Those that the model can give: what is wider than its vectors cuts nothing."""
    values = said if isinstance(said, list) else [] if said is None else [said]
    for each in values:
        if type(each) is not int or each < 1:
            raise LoadError(f"{file}: {field} has {each!r}; it must be whole numbers of at least 1")
    return tuple(sorted({each for each in values if each <= width}))


def _read(source: Path | None, name: str) -> tuple[Path | None, dict[str, Any]]:
    file = None if source is None else fingerprint.beside(source, name)
    found = {} if file is None else folder.read(file)
    if not isinstance(found, dict):
        raise LoadError(f"{file} is no JSON object")
    return file, found
