"""Another server's JSON shape, described in a few lines of YAML instead of code.

    path: /generate
    body: {inputs: "{text}", parameters: {max_new_tokens: "{output}"}}
    ok: {field: status, equals: done}
    tokens_out: usage.completion_tokens

A text that is one placeholder becomes its value (`"{ids}"` a list, `"{length}"` a number), within a
longer text its words: `{text}`, `{ids}`, `{length}`, `{output}`, `{model}`, `{tenant}`,
`{session}`.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

import orjson
from pydantic import BeforeValidator, Field

from loadtests.client.http1 import Response
from loadtests.client.protocols.openai import DEFAULT_OUTPUT
from loadtests.client.protocols.types import AnswerFacts, Endpoint, Heads
from loadtests.traffic.plan import Planned
from loadtests.traffic.scenario_file import read_part
from loadtests.traffic.texts import Texts
from loadtests.traffic.workload import token_ids
from yaml_document.section import Section, listed

_PLACEHOLDER = re.compile(r"\{(text|ids|length|output|model|tenant|session)\}")
Values = dict[str, Any]


class OkPart(Section):
    """When an answer is one."""

    status: Annotated[tuple[int, ...], BeforeValidator(listed)] = Field(
        default=(), description="Statuses; unset, 200 to 299."
    )
    field: str = Field(default="", description="Dotted path into the answer's JSON.")
    equals: Any = Field(default=None, description="What stands there.")


class CustomAdapter(Section):
    path: str = Field(description="Path on the server; placeholders may stand in it.")
    method: Literal["POST", "PUT", "GET"] = Field(default="POST", description="HTTP method.")
    headers: dict[str, str] = Field(default_factory=dict, description="Further headers.")
    body: Any = Field(default=None, description="JSON with placeholders; unset, no body.")
    ok: OkPart = Field(default_factory=OkPart, description="When an answer is one.")
    tokens_out: str = Field(
        default="", description="Dotted path of how many tokens were generated."
    )


class Custom:
    """See `Wire`. Raises ScenarioErrors where the adapter's file is wrong."""

    def __init__(self, place: Endpoint) -> None:
        self.place = place
        self._adapter = read_part(Path(place.adapter), CustomAdapter, "an adapter")
        path = _filled(self._adapter.path, {"model": place.model})
        self._heads = Heads(place, path, self._adapter.method)
        self._more = "".join(f"{k}: {v}\r\n" for k, v in self._adapter.headers.items()).encode()
        self.reseed("")

    def prepare(self) -> None:
        """Nothing has to be known."""

    def reseed(self, seed: str) -> None:
        self._texts = Texts(seed)
        self._rng = random.Random(f"{seed} ids")

    def request(self, planned: Planned) -> bytes:
        body = self._adapter.body
        if body is None:
            return self._heads.request(planned, b"", self._more)
        filled = _filled(body, _Values(self._values(planned)))
        return self._heads.request(planned, orjson.dumps(filled), self._more)

    def listener(self, planned: Planned) -> _Check | None:
        wanted = self._adapter.ok
        if not (wanted.status or wanted.field or self._adapter.tokens_out):
            return None
        return _Check(self._adapter)

    def _values(self, planned: Planned) -> dict[str, Callable[[], Any]]:
        length = planned.lengths[0]
        return {
            "text": lambda: self._texts.of(length),
            "ids": lambda: token_ids(length, self._rng),
            "length": lambda: length,
            "output": lambda: planned.output or DEFAULT_OUTPUT,
            "model": lambda: self.place.model,
            "tenant": lambda: planned.tenant,
            "session": lambda: planned.session,
        }


class _Values(dict[str, Any]):
    """Made when they are asked for, and then the same."""

    def __init__(self, makers: dict[str, Callable[[], Any]]) -> None:
        super().__init__()
        self._makers = makers

    def __missing__(self, name: str) -> Any:
        self[name] = made = self._makers[name]()
        return made


def _filled(template: Any, values: Values) -> Any:
    if isinstance(template, dict):
        return {key: _filled(each, values) for key, each in template.items()}
    if isinstance(template, list):
        return [_filled(each, values) for each in template]
    if not isinstance(template, str):
        return template
    alone = _PLACEHOLDER.fullmatch(template)
    if alone:
        return values[alone[1]]
    return _PLACEHOLDER.sub(lambda found: str(values[found[1]]), template)


class _Check:
    """The listener that looks into an answer."""

    streams = False

    def __init__(self, adapter: CustomAdapter) -> None:
        self.heard = AnswerFacts()
        self._adapter = adapter

    def piece(self, data: bytes, at_s: float) -> None:
        """Nothing is streamed."""

    def ended(self, answer: Response) -> None:
        wanted = self._adapter.ok
        if wanted.status and answer.status not in wanted.status:
            self.heard.trouble = f"status {answer.status}"
        if not (wanted.field or self._adapter.tokens_out):
            return
        try:
            said = orjson.loads(answer.body)
        except orjson.JSONDecodeError:
            self.heard.trouble = self.heard.trouble or "bad answer"
            return
        if wanted.field and _at(said, wanted.field) != wanted.equals:
            self.heard.trouble = f"{wanted.field} differs"
        tokens = _at(said, self._adapter.tokens_out)
        self.heard.tokens_out = tokens if isinstance(tokens, int) else 0


def _at(said: Any, path: str) -> Any:
    """What stands at a dotted path, None where there is nothing."""
    for step in path.split(".") if path else ():
        if isinstance(said, list) and step.isdecimal() and int(step) < len(said):
            said = said[int(step)]
        else:
            said = said.get(step) if isinstance(said, dict) else None
    return said
