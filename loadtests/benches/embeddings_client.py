"""Texts in, vectors out: the embeddings endpoint as a user calls it, for benches that read answers.

Asks for base64 so that every bit of a float arrives. A few threads with a connection each; a
status other than 200 is an error with the body in it, never a missing row. Not a load generator.
"""

from __future__ import annotations

import base64
import http.client
import json
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import urlsplit

import numpy as np

Vectors = np.ndarray[Any, np.dtype[np.float32]]


class WrongAnswer(RuntimeError):
    """The server answered with something else than embeddings."""


class EmbeddingsClient:
    """One model of one server. Safe to use from several threads."""

    def __init__(self, url: str, model: str, timeout_s: float = 120.0) -> None:
        self._netloc = urlsplit(url).netloc
        self._model = model
        self._timeout_s = timeout_s
        self._local = threading.local()

    def embed(self, texts: Sequence[str]) -> Vectors:
        """float32 [texts, width], in order. Raises `WrongAnswer`."""
        body = {"model": self._model, "input": list(texts), "encoding_format": "base64"}
        data = sorted(self._post(body)["data"], key=lambda item: item["index"])
        if len(data) != len(texts):
            raise WrongAnswer(f"{len(data)} embeddings for {len(texts)} texts")
        return np.stack([np.frombuffer(base64.b64decode(d["embedding"]), "<f4") for d in data])

    def _post(self, body: dict[str, Any]) -> dict[str, Any]:
        connection = getattr(self._local, "connection", None)
        if connection is None:
            connection = http.client.HTTPConnection(self._netloc, timeout=self._timeout_s)
            self._local.connection = connection
        headers = {"content-type": "application/json"}
        connection.request("POST", "/v1/embeddings", json.dumps(body), headers)
        answer = connection.getresponse()
        content = answer.read()
        if answer.status != 200:
            raise WrongAnswer(f"status {answer.status}: {content[:500]!r}")
        decoded: dict[str, Any] = json.loads(content)
        return decoded


def embed_in_groups(
    client: EmbeddingsClient, texts: Sequence[str], sizes: Sequence[int], threads: int
) -> Vectors:
    """All texts, `sizes` (cycled) at a time, several groups at once; rows in the texts' order."""
    groups: list[Sequence[str]] = []
    start = 0
    while start < len(texts):
        size = sizes[len(groups) % len(sizes)]
        groups.append(texts[start : start + size])
        start += size
    with ThreadPoolExecutor(threads) as pool:
        return np.concatenate(list(pool.map(client.embed, groups)))
