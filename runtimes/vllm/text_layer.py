"""How do a caller's texts become a prompt, and tokens the answer's text?

Puts two things into vLLM's layer. Texts go through the template with names of special tokens broken
(`special_tokens`). And an answer's text begins behind its prompt also where that ends inside a
character: vLLM would begin with the prompt's own text. Leans on vLLM 0.32's insides.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from vllm.utils.async_utils import make_async
from vllm.v1.engine import detokenizer

from runtimes.vllm.special_tokens import SpecialTokens, whole

_UNFINISHED = "\ufffd"  # stands for the bytes of a character of which some are missing
_TAIL = 16  # tokens; a character has 4 bytes at most


class AnswerDetokenizer(detokenizer.FastIncrementalDetokenizer):  # type: ignore[misc]
    """vLLM's, without the prompt's text."""

    def __init__(self, tokenizer: Any, request: Any) -> None:
        super().__init__(tokenizer, request)
        self._prompt = self._unfinished(request.prompt_token_ids or [])

    def decode_next(self, next_token_id: int) -> str:
        text: str = super().decode_next(next_token_id)
        if text and self._prompt:
            # The first text is that of the whole prompt and what came behind it.
            prompt, self._prompt = self._prompt, ""
            begun = prompt if text.startswith(prompt) else prompt.rstrip(_UNFINISHED)
            text = text.removeprefix(begun)
        return text

    def _unfinished(self, ids: list[int]) -> str:
        """The text of a prompt that ends inside a character; "": it does not."""
        tail = self._text(ids[-_TAIL:])
        if tail and not tail.endswith(_UNFINISHED):
            return ""
        text = self._text(ids)
        return text if text.endswith(_UNFINISHED) else ""

    def _text(self, ids: list[int]) -> str:
        return str(self.tokenizer.decode(ids, skip_special_tokens=self.skip_special_tokens))


def begin_answers_behind_prompts() -> None:
    """For every engine of this process, before it has requests."""
    detokenizer.FastIncrementalDetokenizer = AnswerDetokenizer


def split_special_tokens(renderer: Any) -> SpecialTokens | None:
    """For the chats of this renderer. None: its tokeniser is none that names special tokens in
    texts, or none that can be looked into."""
    tokenizer = getattr(renderer.tokenizer, "_tokenizer", None)
    if tokenizer is None or not detokenizer.uses_fast_detokenizer(renderer.tokenizer):
        return None
    special = SpecialTokens(tokenizer)
    render, tokenize = renderer.render_messages_async, renderer._tokenize_prompt

    async def render_broken(messages: Any, params: Any) -> Any:
        arguments = special.broken(params.chat_template_kwargs)
        params = replace(params, chat_template_kwargs=arguments)
        conversation, prompt = await render(special.broken(messages), params)
        return whole(conversation), prompt

    def tokenize_broken(prompt: Any, params: Any) -> Any:
        ids = special.ids(prompt["prompt"], around=params.add_special_tokens)
        if ids is None:
            return tokenize(prompt, params)
        prompt["prompt"] = whole(prompt["prompt"])
        return renderer._build_tokens_prompt(ids, prompt)

    renderer.render_messages_async = render_broken
    renderer._tokenize_prompt = tokenize_broken
    renderer._tokenize_prompt_async = make_async(tokenize_broken, executor=renderer._executor)
    return special
