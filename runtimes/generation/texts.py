"""How do prompts become tokens, and tokens an answer's text?

A chat goes through the model's own template, in transformers' sandbox. Names of special tokens in
a caller's texts stay text (`special_tokens`). An answer's text never has a part of a character, nor
a beginning of a stop that the next token may complete, and it begins behind its prompt even where
that ends inside a character.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream

from runtimes.errors import LoadError
from runtimes.synthetic.answers import InvalidRequest
from runtimes.vllm.special_tokens import SpecialTokens, whole

_UNFINISHED = "\ufffd"  # stands for the bytes of a character of which some are missing
_TAIL = 16  # tokens; a character has 4 bytes at most
_TAKEN = frozenset(
    {"messages", "conversation", "tools", "documents", "chat_template", "tokenize", "padding",
     "truncation", "max_length", "return_tensors", "return_dict", "tokenizer_kwargs",
     "add_generation_prompt", "continue_final_message", "return_assistant_tokens_mask"}
)  # fmt: skip


class Prompts:
    """Reads prompts with a model's tokeniser and chat template. Thread-safe."""

    def __init__(self, folder: Path, template: Path | None, *, split_special_tokens: bool) -> None:
        """Raises `LoadError`."""
        from transformers import AutoTokenizer

        try:
            self._tokenizer: Any = AutoTokenizer.from_pretrained(
                str(folder), local_files_only=True, trust_remote_code=False
            )
            if template is not None:
                self._tokenizer.chat_template = template.read_text(encoding="utf-8")
        except Exception as error:  # its parts raise what they like
            raise LoadError(f"{folder}: its tokeniser cannot be read: {error}") from error
        found = getattr(self._tokenizer, "backend_tokenizer", None)
        if not isinstance(found, Tokenizer):
            raise LoadError(f"{folder} has no fast tokeniser; add the model's tokenizer.json")
        self.tokens = found
        self.tokens.no_truncation()
        self.tokens.no_padding()
        self._special = SpecialTokens(found) if split_special_tokens else None

    def of_text(self, text: str) -> list[int]:
        broken = text if self._special is None else self._special.broken(text)
        ids = None if self._special is None else self._special.ids(broken, around=True)
        return list(self.tokens.encode(whole(broken)).ids) if ids is None else ids

    def of_chat(self, messages: list[dict[str, Any]], arguments: Mapping[str, Any]) -> list[int]:
        """Raises `InvalidRequest` for what the template refuses."""
        if not self._tokenizer.chat_template:
            raise InvalidRequest(
                "this model has no chat template; send its prompts to /v1/completions", "messages"
            )
        taken = sorted(_TAKEN & arguments.keys())
        if taken:
            raise InvalidRequest(
                f"chat_template_kwargs has {taken[0]}, which is not the caller's to say",
                "chat_template_kwargs",
            )
        said: Any = (messages, dict(arguments))
        said = said if self._special is None else self._special.broken(said)
        try:
            text = self._tokenizer.apply_chat_template(
                said[0], tokenize=False, add_generation_prompt=True, **said[1]
            )
        except Exception as error:  # templates raise what they like
            raise InvalidRequest(f"the chat template refuses this: {error}", "messages") from error
        ids = None if self._special is None else self._special.ids(text, around=False)
        if ids is not None:
            return ids
        return list(self.tokens.encode(whole(text), add_special_tokens=False).ids)


class AnswerText:
    """The text of one output, token by token. `stopped`: the stop that it has met."""

    def __init__(
        self, tokens: Tokenizer, prompt: Sequence[int], stops: tuple[str, ...], *, include: bool,
        skip_special: bool,
    ) -> None:  # fmt: skip
        self._tokens = tokens
        self._skip_special = skip_special
        tail = list(prompt[-_TAIL:])
        self._prompt = self._unfinished(tail)
        self._stream = DecodeStream(ids=tail, skip_special_tokens=skip_special)
        self._stops = stops
        self._include = include
        self._held = ""  # a stop may begin in it
        self.stopped: str | None = None

    def add(self, token: int, *, may_stop: bool = True) -> str:
        """What can be shown of the text now. `may_stop`: whether a stop ends it already."""
        self._held += self._decoded(token)
        if not self._stops or not may_stop:
            shown, self._held = self._held, ""
            return shown
        found = [(self._held.find(stop), stop) for stop in self._stops if stop in self._held]
        if found:
            at, self.stopped = min(found)
            shown = self._held[: at + len(self.stopped) * self._include]
            self._held = ""
            return shown
        return self._cut(len(self._held) - self._beginning())

    def rest(self) -> str:
        """What was held back; the text ends here."""
        return self._cut(len(self._held))

    def _cut(self, at: int) -> str:
        shown, self._held = self._held[:at], self._held[at:]
        return shown

    def _beginning(self) -> int:
        """Characters at the end with which a stop may begin."""
        most = min(len(self._held), max(map(len, self._stops)) - 1)
        ends = (size for size in range(most, 0, -1))
        return next(
            (size for size in ends if any(s.startswith(self._held[-size:]) for s in self._stops)),
            0,
        )

    def _decoded(self, token: int) -> str:
        try:
            text = self._stream.step(self._tokens, token) or ""
        except Exception:  # the text of all tokens does not begin with that of those before
            self._stream = DecodeStream(skip_special_tokens=self._skip_special)
            text = str(self._tokens.decode([token], skip_special_tokens=self._skip_special))
        if text and self._prompt:
            # The first text is that of the whole prompt and what came behind it.
            prompt, self._prompt = self._prompt, ""
            begun = prompt if text.startswith(prompt) else prompt.rstrip(_UNFINISHED)
            text = text.removeprefix(begun)
        return text

    def _unfinished(self, tail: list[int]) -> str:
        """The text of a prompt that ends inside a character; "": it does not."""
        text = str(self._tokens.decode(tail, skip_special_tokens=self._skip_special))
        return text if text.endswith(_UNFINISHED) else ""
