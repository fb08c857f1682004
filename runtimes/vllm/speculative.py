"""`speculative`: who proposes tokens that the engine checks together, and up to which batch?

The engine keeps of each proposal what it would have written itself, so greedy answers stay the
same. It pays where steps wait for memory: proposals cost arithmetic, and with many sequences there
is none to spare. From `off_above` sequences a step on none are made; where that is `measured`, none
where they do not pay (`drafting`). Written as vLLM's `speculative_config`.
Source: vLLM 0.32, "Speculative decoding"; Leviathan et al., ICML 2023.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from runtimes import options
from runtimes.errors import LoadError

MAX_TOKENS = 32
_NGRAM_MIN, _NGRAM_MAX = 2, 4
_MOST_SEQUENCES = 1 << 20  # more than any engine runs
_FOLDER = ("draft_model", "eagle", "eagle3", "medusa", "mlp_speculator")


@dataclass(frozen=True, slots=True)
class Speculative:
    """`tokens`: proposed a step. `model`: a folder, of all methods but `ngram`, which looks for the
    last `prompt_lookup_min` to `prompt_lookup_max` tokens in what came before."""

    method: Literal["ngram", "draft_model", "eagle", "eagle3", "medusa", "mlp_speculator"]
    tokens: int
    model: str | None = None
    prompt_lookup_min: int | None = None
    prompt_lookup_max: int | None = None
    off_above: int | Literal["measured"] | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.tokens <= MAX_TOKENS:
            raise ValueError(f"option 'tokens' is {self.tokens}, it must be 1 to {MAX_TOKENS}")
        for name in ("prompt_lookup_min", "prompt_lookup_max", "off_above"):
            value = getattr(self, name)
            if isinstance(value, int) and value < 1:
                raise ValueError(f"option '{name}' is {value}, it must be 1 or more")
        by_folder = self.method in _FOLDER
        if by_folder != (self.model is not None):
            wrong = f"method {self.method} needs" if by_folder else "method ngram has no"
            raise ValueError(f"{wrong} option 'model'")
        least, most = self.prompt_lookup_min, self.prompt_lookup_max
        if by_folder and (least or most):
            raise ValueError("options 'prompt_lookup_min' and 'prompt_lookup_max' are for ngram")
        if least is not None and most is not None and least > most:
            raise ValueError(f"option 'prompt_lookup_min' is {least}, above 'prompt_lookup_max'")

    def command_line(self) -> str:
        """The value of `--speculative-config`."""
        made: dict[str, Any] = {"method": self.method, "num_speculative_tokens": self.tokens}
        if self.model is not None:
            made["model"] = self.model
        else:
            least, most = self.prompt_lookup_min, self.prompt_lookup_max
            made["prompt_lookup_min"] = least or min(_NGRAM_MIN, most or _NGRAM_MIN)
            made["prompt_lookup_max"] = most or max(_NGRAM_MAX, least or 0)
        if self.off_above == "measured":
            made["num_speculative_tokens_per_batch_size"] = [[1, _MOST_SEQUENCES, self.tokens]]
        elif self.off_above is not None:
            made["num_speculative_tokens_per_batch_size"] = [
                [1, self.off_above, self.tokens],
                [self.off_above + 1, _MOST_SEQUENCES, 0],
            ]
        return json.dumps(made)


def parsed(given: Mapping[str, Any] | None) -> Speculative | None:
    """Raises `ValueError` in the words of an option's mistake."""
    if given is None:
        return None
    try:
        return options.parse(Speculative, given)
    except LoadError as wrong:
        raise ValueError(f"option 'speculative': {wrong}") from None
