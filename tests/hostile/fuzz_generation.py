"""`python tests/hostile/fuzz_generation.py N`: N chats and completions, each sent whole and
streamed through a gateway, and the two answers compared.

Drawn are prompts of text and of tokens, sampling parameters, structured output with schemas, tools,
and what is near the edge of each or beyond it. Both ways must end with the same status; two
refusals with the same words; two answers with the same texts, reasons to finish, log-probabilities
and counts. No stream may hold an error and end as if it were whole. `--engine`: `played` is vLLM's
own layer over an engine that only draws tokens (`played_vllm`), `vllm` is the real one, `synthetic`
needs neither. The same seed draws the same cases; `--only NUMBER` draws one again.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parents[1] / "deployments"), str(Path(__file__).parents[2])]

from generating import Generated, add  # noqa: E402 - its folder is put on the path above
from in_process import Answer, Stand, ask  # noqa: E402

from deployments.contract.description import Generating  # noqa: E402
from deployments.replica import backend_env  # noqa: E402
from examples import make_llm  # noqa: E402
from runtimes import catalog  # noqa: E402
from runtimes.types import RuntimeSettings  # noqa: E402
from tests.deployments.conftest import described  # noqa: E402

SEED = 23
CONTEXT, SEQUENCES, CACHE_TOKENS, BLOCK = 512, 8, 8192, 32
ENGINES = ("played", "vllm", "synthetic")
OPTIONS: dict[str, dict[str, Any]] = {
    "vllm": {
        "max_num_seqs": SEQUENCES, "block_size": BLOCK, "kv_cache_gib": 0.25,
        "tool_call_parser": "hermes", "enforce_eager": True,
    },
    "synthetic": {"base_ms": 0, "max_sequences": SEQUENCES, "cache_tokens": CACHE_TOKENS},
}  # fmt: skip
# vLLM has these only in answers that come whole, and says so.
ONLY_WHOLE = ("prompt_logprobs", "use_beam_search")
_DONE = b"data: [DONE]\n\n"
_SAID_EVERY = 5000
_FORGETS_EVERY = 500
_LIMIT_S = 60.0
_BEYOND = 99_999_999  # no token of any vocabulary


class Differ(AssertionError):
    """A case ended otherwise streamed than whole, or as none may."""


# ---- what is drawn ------------------------------------------------------------------------------


def _schema(rng: random.Random, depth: int = 0) -> Any:
    kind = rng.choice(["object", "array", "string", "integer", "number", "boolean", "null", "odd"])
    if kind == "odd":
        return rng.choice(
            [{"type": "nothing"}, {"type": 3}, {}, True, [], {"$ref": "#/x"}, {"enum": []},
             {"not": {"type": "string"}}, {"if": {"type": "null"}}, {"pattern": "("},
             {"type": "string", "pattern": "(?=a)b"}, {"oneOf": [{"type": "null"}]},
             {"anyOf": []}, {"const": None}, {"type": "string", "format": "nothing"}]
        )  # fmt: skip
    if depth > 3 or kind not in ("object", "array"):
        more = {"minLength": 2} if kind == "string" and rng.random() < 0.2 else {}
        return {"type": kind, **more}
    if kind == "array":
        return {"type": "array", "items": _schema(rng, depth + 1), "maxItems": rng.choice([0, 2])}
    names = rng.sample(["a", "b", "", "\u00e9", "long name"], rng.randint(0, 3))
    return {
        "type": "object",
        "properties": {name: _schema(rng, depth + 1) for name in names},
        "required": [*names, *(["x"] if rng.random() < 0.1 else [])],
        "additionalProperties": rng.choice([True, False]),
    }


def _token(rng: random.Random) -> Any:
    return rng.choice([0, 1, 2, 7, 300, 1023, 1024, -1, _BEYOND, 2**31 - 1, 2**40, "7", None, 1.5])


def _fine_token(rng: random.Random) -> int:
    return rng.randrange(1024)


def _few(rng: random.Random, draw: Callable[[random.Random], Any], most: int = 3) -> list[Any]:
    return [draw(rng) for _ in range(rng.randint(0, most))]


def _tokens(rng: random.Random) -> list[Any]:
    return _few(rng, _fine_token if rng.random() < 0.7 else _token, 6)


def _text(rng: random.Random) -> str:
    return rng.choice(
        ["hello", "a b c d", "", " ", "\u00e9\u4e2d\U0001f600", "<|end|>", "x" * 300, "\x00",
         "{{ a }}", '{"a": 1}', "water wheel", "\ud7ff"]
    )  # fmt: skip


def _prompt(rng: random.Random) -> Any:
    ways = [_text, _text, _tokens, _tokens, lambda r: _few(r, _text), lambda r: _few(r, _tokens)]
    return rng.choice(ways)(rng)


def _regex(rng: random.Random) -> Any:
    return rng.choice(["a+", "foo**", "(", "[0-9]{3}", "(?=a)b", "", "\\d+", "(a|b)*c", 5])


def _structured(rng: random.Random) -> Any:
    ways: list[Callable[[random.Random], Any]] = [
        lambda r: {"regex": _regex(r)},
        lambda r: {"json": _schema(r)},
        lambda r: {"json": json.dumps(_schema(r))[: r.choice([5, 10_000])]},
        lambda r: {"choice": _few(r, _text)},
        lambda r: {"grammar": r.choice(['root ::= "a"', "root ::= (", "", "start: /a/"])},
        lambda r: {"json_object": r.choice([True, False, None])},
        lambda r: {"regex": "a", "choice": ["a"]},
        lambda _: {},
    ]
    return rng.choice(ways)(rng)


def _format(rng: random.Random) -> Any:
    kind = rng.choice(["text", "json_object", "json_schema", "json_schema", "structural_tag", "x"])
    if kind != "json_schema":
        return {"type": kind}
    named = {"name": rng.choice(["a", "", None]), "schema": _schema(rng)}
    return rng.choice([{"type": kind, "json_schema": named}] * 4 + [{"type": kind}])


def _tools(rng: random.Random) -> Any:
    function = {"name": rng.choice(["f", "f", "g", ""]), "parameters": _schema(rng)}
    tool = {"type": "function", "function": function}
    return rng.choice([[tool], [tool, tool], [], [{}], [{"type": "x"}], None])


_CHOICE = [
    "none", "auto", "auto", "required", "required", "x", {"type": "function", "function": {}},
    {"type": "function", "function": {"name": "f"}},
    {"type": "function", "function": {"name": "nothing"}},
]  # fmt: skip
_SMALL: list[Any] = [0, 1, 2, 5, 20, 21, -1, -2, 100, 2**31, 2**63, 1.5, "1", None, True]
_RATIO: list[Any] = [0, 0.5, 1, 1.0, 2, -1, 1e308, -0.0, 1e-9, "x", None, 3]

BOTH: dict[str, Callable[[random.Random], Any]] = {
    "logit_bias": lambda r: {str(_token(r)): r.choice([1, -100, 100, 1e9, "x"]) for _ in range(2)},
    "stop": lambda r: r.choice([_text(r), _few(r, _text), ["e"], ["\n", "a"], None, 5]),
    "stop_token_ids": _tokens, "allowed_token_ids": _tokens, "logprob_token_ids": _tokens,
    "bad_words": lambda r: _few(r, _text),
    "structured_outputs": _structured, "response_format": _format,
    "thinking_token_budget": lambda r: r.choice(_SMALL),
    "n": lambda r: r.choice([1, 2, 3, 0, 129, *_SMALL]),
    "max_tokens": lambda r: r.choice([1, 2, 3, 8, 0, 600, *_SMALL[:8]]),
    "min_tokens": lambda r: r.choice(_SMALL), "seed": lambda r: r.choice(_SMALL),
    "temperature": lambda r: r.choice(_RATIO), "top_p": lambda r: r.choice(_RATIO),
    "top_k": lambda r: r.choice(_SMALL), "min_p": lambda r: r.choice(_RATIO),
    "frequency_penalty": lambda r: r.choice(_RATIO), "presence_penalty": lambda r: r.choice(_RATIO),
    "repetition_penalty": lambda r: r.choice(_RATIO),
    "truncate_prompt_tokens": lambda r: r.choice(_SMALL),
    "truncation_side": lambda r: r.choice(["left", "right", "x"]),
    "prompt_logprobs": lambda r: r.choice(_SMALL),
    "use_beam_search": lambda r: r.choice([True, False, False]),
    "ignore_eos": lambda r: r.choice([True, False]),
    "skip_special_tokens": lambda r: r.choice([True, False]),
    "include_stop_str_in_output": lambda r: r.choice([True, False]),
    "return_token_ids": lambda r: r.choice([True, False]),
    "return_tokens_as_token_ids": lambda r: r.choice([True, False]),
    "add_special_tokens": lambda r: r.choice([True, False]),
    "echo": lambda r: r.choice([True, False]),
    "stream_options": lambda r: r.choice(
        [{"include_usage": True}, {"include_usage": True, "continuous_usage_stats": True}, {}]
    ),
    "stream_interval": lambda r: r.choice([1, 2, 5, 0]),
    "repetition_detection": lambda r: {"max_pattern_size": r.choice([-1, 0, 2]), "min_count": 2},
    "cache_salt": lambda r: r.choice(["", "a", "a" * 2000]),
    "priority": lambda r: r.choice(_SMALL), "user": _text,
    "vllm_xargs": lambda r: {"a": r.choice([1, "x", [1], None])},
    "unknown": lambda r: r.choice([1, "x", {"a": "b"}]),
}  # fmt: skip
COMPLETION: dict[str, Callable[[random.Random], Any]] = {
    **BOTH, "prompt": _prompt, "logprobs": lambda r: r.choice(_SMALL),
    "suffix": lambda r: r.choice([_text(r), None]), "best_of": lambda r: r.choice([1, 2, 200]),
    "prompt_embeds": _text,
}  # fmt: skip
CHAT: dict[str, Callable[[random.Random], Any]] = {
    **BOTH, "logprobs": lambda r: r.choice([True, True, False, 1]),
    "top_logprobs": lambda r: r.choice(_SMALL), "tools": _tools,
    "tool_choice": lambda r: r.choice(_CHOICE),
    "messages": lambda r: [
        {"role": r.choice(["user", "user", "system", "assistant", "tool", "x"]),
         "content": r.choice([_text(r), [{"type": "text", "text": _text(r)}], None, [],
                              [{"type": "image_url", "image_url": {"url": "data:,"}}]])}
        for _ in range(r.randint(1, 3))
    ],
    "documents": lambda r: r.choice([[{"title": "a", "text": _text(r)}], [], None]),
    "chat_template_kwargs": lambda r: r.choice([{"a": 1}, {"tools": 3}, {}, None]),
    "chat_template": lambda r: r.choice(["{{ a }}", None]),
    "add_generation_prompt": lambda r: r.choice([True, False]),
    "continue_final_message": lambda r: r.choice([True, False]),
    "reasoning_effort": lambda r: r.choice(["low", "none", "x"]),
    "parallel_tool_calls": lambda r: r.choice([True, False]),
    "max_completion_tokens": lambda r: r.choice([1, 3, 8, 0, -1, 600]),
}  # fmt: skip
# What often comes together.
_WITH = {
    "top_logprobs": {"logprobs": True}, "logprob_token_ids": {"logprobs": 1},
    "tool_choice": {"tools": [{"type": "function", "function": {"name": "f", "parameters": {}}}]},
    "n": {"temperature": 0.5}, "min_tokens": {"max_tokens": 8},
}  # fmt: skip


def drawn(number: int) -> tuple[str, dict[str, Any]]:
    """The endpoint and the body of a case, without `stream`."""
    rng = random.Random(f"{SEED} {number}")
    endpoint = rng.choice(["chat", "completions"])
    table = CHAT if endpoint == "chat" else COMPLETION
    # Seeded, so that a real engine too draws the same tokens both ways.
    body: dict[str, Any] = {"model": "chat", "max_tokens": rng.choice([1, 3, 8, 24]), "seed": 7}
    if endpoint == "chat":
        body["messages"] = [{"role": "user", "content": _text(rng)}]
    else:
        body["prompt"] = rng.choice([_text(rng), _few(rng, _fine_token, 5) or [1]])
    for name in rng.sample(sorted(table), rng.choice([0, 1, 1, 1, 2, 2, 3, 5])):
        if rng.random() < 0.8:
            body |= _WITH.get(name, {})
        body[name] = table[name](rng)
    return endpoint, body


# ---- what is compared ---------------------------------------------------------------------------


@dataclass
class Said:
    """An answer, in one form for both ways. By choice: its text, reason to finish, tokens that have
    a log-probability, and token ids."""

    error: dict[str, Any] | None = None
    texts: dict[int, str] = field(default_factory=dict)
    finish: dict[int, Any] = field(default_factory=dict)
    logprobs: dict[int, list[Any]] = field(default_factory=dict)
    token_ids: dict[int, list[int]] = field(default_factory=dict)
    calls: dict[int, list[tuple[str, str]]] = field(default_factory=dict)
    usage: dict[str, Any] | None = None

    def take(self, choice: dict[str, Any], part: dict[str, Any]) -> None:
        index = choice["index"]
        text = choice["text"] if "text" in choice else part.get("content")
        self.texts[index] = self.texts.get(index, "") + (text or "")
        if choice.get("finish_reason") is not None:
            self.finish[index] = choice["finish_reason"], choice.get("stop_reason")
        named = choice.get("logprobs") or {}
        self.logprobs.setdefault(index, []).extend(
            named.get("tokens") or named.get("content") or ()
        )
        self.token_ids.setdefault(index, []).extend(choice.get("token_ids") or ())
        for call in part.get("tool_calls") or ():
            known = self.calls.setdefault(index, [])
            at = call.get("index", len(known))
            if at >= len(known):
                known.append(("", ""))
            name, arguments = known[at]
            function = call["function"]
            more = function.get("name") or "", function.get("arguments") or ""
            known[at] = name + more[0], arguments + more[1]


def whole(answer: Answer) -> Said:
    page = json.loads(answer.body)
    if answer.status != 200:
        return Said(page["error"])
    said = Said(usage=page.get("usage"))
    for choice in page["choices"]:
        said.take(choice, choice.get("message") or {})
    return said


def streamed(answer: Answer) -> Said:
    if answer.status != 200:
        return Said(json.loads(answer.body)["error"])
    if not answer.body.endswith(_DONE):
        raise Differ(f"the stream has no end: {answer.body[-300:]!r}")
    said = Said()
    for event in answer.body.removesuffix(_DONE).split(b"\n\n")[:-1]:
        page = json.loads(event.removeprefix(b"data: "))
        if "error" in page:
            raise Differ(f"an error within a stream that ends as if whole: {page}")
        for choice in page["choices"]:
            said.take(choice, choice.get("delta") or {})
        if not page["choices"]:
            said.usage = page.get("usage")
    return said


def compare(body: dict[str, Any], one: Answer, other: Answer) -> str:
    """How both ended. Raises Differ."""
    for name in ONLY_WHOLE:
        if body.get(name) and one.status != other.status == 400:
            return f"{one.status} whole alone"
    if one.status == 400 and other.status == 200 and b"may come in one piece" in one.body:
        return "200 streamed alone"
    if one.status != other.status:
        raise Differ(f"{one.status} whole, {other.status} streamed: {one.body!r}, {other.body!r}")
    first, second = whole(one), streamed(other)
    if one.status >= 500:
        raise Differ(f"{one.status} both ways: {first.error}")
    if first.error is not None and second.error is not None:
        many = isinstance(body.get("prompt"), list)  # of which any may be the one that is named
        is_same = first.error["message"] == second.error["message"]
        if not is_same and not many and not any(map(body.get, ONLY_WHOLE)):
            raise Differ(f"other words: {first.error}, {second.error}")
        return str(one.status)
    if body.get("use_beam_search"):
        return "200 with beams"  # which come at the end of a stream, without a count
    if body.get("tools") and any("<" in text for text in first.texts.values()):
        return "200 with a call cut short"  # as text where whole, as nothing where streamed
    if second.usage is None:
        first.usage = None
    first.usage, second.usage = _stated(first.usage), _stated(second.usage)
    for name in ("texts", "finish", "logprobs", "token_ids", "calls", "usage"):
        if getattr(first, name) != getattr(second, name):
            raise Differ(f"other {name}: {getattr(first, name)!r}, {getattr(second, name)!r}")
    return "200"


def _stated(value: Any) -> Any:
    """Without members that are null: a stream leaves them out."""
    if isinstance(value, dict):
        return {name: _stated(each) for name, each in value.items() if each is not None}
    return value


# ---- the run ------------------------------------------------------------------------------------


@asynccontextmanager
async def standing(engine: str) -> AsyncIterator[Stand]:
    folder = Path(tempfile.mkdtemp(prefix="fuzz-generation-"))
    kind = "synthetic" if engine == "synthetic" else "vllm"
    settings = RuntimeSettings(
        "chat", kind, make_llm.make(folder / "llm"), folder / "cache", task="generate",
        max_length=CONTEXT, options=OPTIONS[kind], threads=1,
    )  # fmt: skip
    backend_env.set_engine_variables(settings, os.environ)
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "CRITICAL")
    runtime = catalog.create_stream(settings)
    if engine == "played":
        from tests.hostile.played_vllm import played_engine
    with played_engine() if engine == "played" else nullcontext():
        await runtime.load()
    stand = Stand({}, folder)
    shape = Generating(CONTEXT, CACHE_TOKENS, SEQUENCES, BLOCK)
    patience = {"ttft_ms": 60_000, "timeout_ms": 60_000}
    add(stand, described, engines=Generated(runtime), shape=shape, slo=patience)
    try:
        yield stand
    finally:
        stand.close()
        await runtime.close()
        shutil.rmtree(folder)


async def one(stand: Stand, number: int) -> str:
    """How the case ended both ways. Raises Differ."""
    endpoint, body = drawn(number)
    path = "/v1/chat/completions" if endpoint == "chat" else "/v1/completions"
    answers = []
    for stream in (False, True):
        fields = {k: v for k, v in body.items() if stream or k != "stream_options"}
        sent = json.dumps({**fields, "stream": stream}).encode()
        asked = ask(stand.app, "POST", path, (), sent, pieces=True)
        answers.append(await asyncio.wait_for(asked, _LIMIT_S))
    return f"{endpoint} {compare(body, *answers)}"


async def run(
    count: int, engine: str, say: Callable[[str], None] = lambda _: None, *, first: int = 0,
    keep_going: bool = False,
) -> Counter[str]:  # fmt: skip
    """How `count` cases ended. Raises Differ at the first that differs, or says all of them."""
    ends: Counter[str] = Counter()
    began = time.monotonic()
    async with standing(engine) as stand:
        for number in range(first, first + count):
            try:
                ends[await one(stand, number)] += 1
            except Exception as fault:
                said = f"--only {number}: {drawn(number)}: {type(fault).__name__}: {fault}"
                if not keep_going:
                    raise Differ(said) from fault
                ends["DIFFER"] += 1
                say(said)
            done = number - first + 1
            if done % _SAID_EVERY == 0:
                say(f"{done} of {count}, {done / (time.monotonic() - began):.0f}/s")
            if done % _FORGETS_EVERY == 0:
                for channel in stand.channels.values():
                    channel.begun.clear()  # type: ignore[attr-defined]
    return ends


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("count", type=int, nargs="?", default=1000)
    has_vllm = catalog.available("vllm", "generate") is None
    parser.add_argument("--engine", choices=ENGINES, default="played" if has_vllm else "synthetic")
    parser.add_argument("--first", type=int, default=0, help="number of the first case")
    parser.add_argument("--only", type=int, metavar="NUMBER")
    parser.add_argument("--all", action="store_true", help="go on after a difference")
    args = parser.parse_args()
    logging.disable(logging.ERROR)
    count, first = (1, args.only) if args.only is not None else (args.count, args.first)
    ends = asyncio.run(
        run(count, args.engine, lambda s: print(s, flush=True), first=first, keep_going=args.all)
    )
    for end, number in sorted(ends.items()):
        print(f"{number:9,}  {end}")
    sys.exit(1 if ends["DIFFER"] else 0)


if __name__ == "__main__":
    main()
