"""Answers to requests to generate, in OpenAI's JSON with what vLLM adds: whole, and as events.

A choice has an index over all outputs of a request. The text of an answer that streams is that of
one that comes whole. Source: OpenAI's API reference, "The chat completion chunk object".
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tokenizers import Tokenizer

from runtimes.generation.requests import Asked
from runtimes.generation.sampling import Drawn
from runtimes.synthetic.answers import DONE


@dataclass(slots=True)
class Piece:
    """What has come of one output since the last piece. `finish`: why it has ended, None while it
    goes on; `stop`: what ended it, a text or a token, where that is not the model's own end."""

    index: int
    text: str = ""
    drawn: list[Drawn] = field(default_factory=list)
    finish: str | None = None
    stop: str | int | None = None

    def join(self, later: Piece) -> None:
        self.text += later.text
        self.drawn += later.drawn
        self.finish, self.stop = later.finish, later.stop


@dataclass(frozen=True, slots=True)
class Counts:
    """Tokens of a request."""

    inputs: int
    cached: int
    outputs: int

    def page(self) -> dict[str, Any]:
        return {
            "prompt_tokens": self.inputs,
            "total_tokens": self.inputs + self.outputs,
            "completion_tokens": self.outputs,
            "prompt_tokens_details": {"cached_tokens": self.cached},
        }


class Answers:
    """One request's. `head`: what each event begins with; `prompts`: their tokens."""

    def __init__(
        self, asked: Asked, head: dict[str, Any], prompts: Sequence[list[int]], tokens: Tokenizer
    ) -> None:
        self._asked = asked
        self._kind = "chat.completion" if asked.chat else "text_completion"
        self._head = head
        self._prompts = prompts
        self._tokens = tokens
        self._offsets: dict[int, int] = {}  # of completions' tokens, by output
        self._begun: set[int] = set()

    def event(self, piece: Piece) -> bytes:
        """With what comes before an output's first. Nothing for tokens of which nothing shows."""
        asked = self._asked
        told = asked.token_ids or asked.sampling.logprobs is not None
        first = piece.index not in self._begun
        if not (piece.text or piece.finish or told or first):
            return b""
        self._begun.add(piece.index)
        prompt = piece.index // self._asked.n
        said: dict[str, Any]
        if self._asked.chat:
            start = b""
            if first:
                role = {"index": piece.index, "delta": {"role": "assistant", "content": ""}}
                more = {"prompt_token_ids": self._prompts[prompt]} if self._asked.token_ids else {}
                start = self._event([{**role, "logprobs": None, "finish_reason": None}], **more)
            return start + self._event([self._choice(piece, {"delta": {"content": piece.text}})])
        text = piece.text
        if first and self._asked.echo:
            text = self._text(prompt) + text
        said = {"text": text}
        if first and self._asked.token_ids:
            said["prompt_token_ids"] = self._prompts[prompt]
        return self._event([self._choice(piece, said)])

    def last(self, counts: Counts) -> bytes:
        return (self._event([], usage=counts.page()) if self._asked.usage else b"") + DONE

    def whole(self, pieces: Sequence[Piece], counts: Counts) -> bytes:
        asked, choices = self._asked, []
        more: dict[str, Any] = {}
        for piece in pieces:
            prompt = piece.index // asked.n
            said: dict[str, Any]
            if asked.chat:
                said = {"message": {"role": "assistant", "content": piece.text}}
                if asked.token_ids:
                    more = {"prompt_token_ids": self._prompts[prompt]}
            else:
                said = {"text": self._text(prompt) * asked.echo + piece.text}
                if asked.token_ids:
                    said["prompt_token_ids"] = self._prompts[prompt]
            choices.append(self._choice(piece, said))
        page = {**self._head, "object": self._kind, "choices": choices, "usage": counts.page()}
        return _json({**page, **more})

    def _choice(self, piece: Piece, said: dict[str, Any]) -> dict[str, Any]:
        choice = {"index": piece.index, **said, "logprobs": self._logprobs(piece)}
        choice |= {"finish_reason": piece.finish, "stop_reason": piece.stop}
        if self._asked.token_ids:
            choice["token_ids"] = [each.token for each in piece.drawn]
        return choice

    def _text(self, prompt: int) -> str:
        return str(self._tokens.decode(self._prompts[prompt], skip_special_tokens=False))

    def _written(self, token: int) -> str:
        return str(self._tokens.decode([token], skip_special_tokens=False))

    def _event(self, choices: list[dict[str, Any]], **more: Any) -> bytes:
        kind = "chat.completion.chunk" if self._asked.chat else self._kind
        page = {**self._head, "object": kind, "choices": choices, **more}
        return b"data: " + _json(page) + b"\n\n"

    def _logprobs(self, piece: Piece) -> dict[str, Any] | None:
        if self._asked.sampling.logprobs is None:
            return None
        if self._asked.chat:
            return {"content": [self._of_chat(each) for each in piece.drawn]}
        offset = self._offsets.get(piece.index, 0)
        offsets, names = [], [self._written(each.token) for each in piece.drawn]
        for name in names:
            offsets.append(offset)
            offset += len(name)
        self._offsets[piece.index] = offset
        pairs = [(*each.others, (each.token, each.logprob)) for each in piece.drawn]
        tops = [{self._written(token): value for token, value in each} for each in pairs]
        return {
            "text_offset": offsets,
            "token_logprobs": [each.logprob for each in piece.drawn],
            "tokens": names,
            "top_logprobs": tops,
        }

    def _of_chat(self, drawn: Drawn) -> dict[str, Any]:
        count = self._asked.sampling.logprobs
        tops = [self._named(token, value) for token, value in drawn.others[:count]]
        return {**self._named(drawn.token, drawn.logprob), "top_logprobs": tops}

    def _named(self, token: int, logprob: float | None) -> dict[str, Any]:
        text = self._written(token)
        return {"token": text, "logprob": logprob, "bytes": list(text.encode())}


def _json(page: dict[str, Any]) -> bytes:
    return json.dumps(page, separators=(",", ":"), ensure_ascii=False).encode()
