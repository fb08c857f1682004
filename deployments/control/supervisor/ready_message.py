"""What `serve` prints once its models are ready: the address, and one command to try."""

from __future__ import annotations

import json
import shlex
import urllib.request
from collections.abc import Iterable, Mapping
from typing import Any

from deployments.contract.description import ModelDescription
from deployments.gateway.http.protocols import openapi_schemas

_EMBEDS = {  # by kind: the path, and what it calls texts
    "embed": ("/v1/embeddings", "input"),
    "tokens": ("/pooling", "input"),
    "sparse": ("/embed_sparse", "inputs"),
}


def try_line(description: ModelDescription, url: str) -> str:
    """One `curl` command that this model answers, to be pasted into a shell."""
    url, name = url.rstrip("/"), description.name
    if description.kind in _EMBEDS and description.tokenizer_digest:
        path, key = _EMBEDS[description.kind]
        return _post(f"{url}{path}", {"model": name, key: "Ragged traffic at an even flow."})
    if (chat := openapi_schemas.chat(description)) is not None:
        return _post(f"{url}/v1/chat/completions", chat | {"stream": False})
    if (texts := openapi_schemas.classify(description)) is not None:
        return _post(f"{url}/v1/models/{name}:classify", texts)
    model = f"{url}/v2/models/{name}"
    body = openapi_schemas.infer(description)
    return f"{_curl()} {shlex.quote(model)}" if body is None else _post(f"{model}/infer", body)


def _post(url: str, body: dict[str, Any]) -> str:
    text = shlex.quote(json.dumps(body))
    return f"{_curl()} {shlex.quote(url)} -H 'content-type: application/json' -d {text}"


def _curl() -> str:
    """The shell that it is pasted into may name a proxy, and lack what `serve` added to
    `no_proxy`."""
    proxied = urllib.request.getproxies().keys() & {"http", "https", "all"}
    return "curl -s --noproxy '*'" if proxied else "curl -s"


def ready_message(
    url: str, descriptions: Iterable[ModelDescription], late: Mapping[str, str]
) -> str:
    """The last lines that `serve` prints before it serves. `late`: optional models that are not
    ready, by name, with the reason why one cannot start ("": it is starting)."""
    found = list(descriptions)
    lines = [f"ready: {url} ({', '.join(each.name for each in found)})"]
    for name, reason in sorted(late.items()):
        why = f"cannot start: {reason}" if reason else "is not ready yet"
        lines.append(f"{name} is optional and {why}")
    if found:
        lines += ["try:", f"  {try_line(found[0], url)}"]
    return "\n".join(lines)
