"""`:classify`: images or texts in, labels with scores out.

JSON `{"instances": [...], "top_k": 3}`, an instance being `{"b64": ...}` (a JPEG or PNG file),
`{"url": ...}` (of one), a text, or `{"text": ...}`, all images or all texts; or one image as the
body itself (`image/jpeg`, `image/png`, `application/octet-stream`), or files of
`multipart/form-data`, both with `?top_k=3`.

Each prediction has its best labels in order. Scores are the model's activation (softmax, sigmoid or
none) of logits / temperature. Where the best is below the model's threshold there are none: the
answer abstains, and names its best guess apart, so that nobody takes it for an answer.

Source: shaped as TensorFlow Serving's `:predict`; RFC 7578 for multipart.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Sequence
from functools import lru_cache, partial
from typing import Annotated, Any
from urllib.parse import parse_qs

import msgspec
import numpy as np
import orjson

from deployments.contract.description import Classes, ModelDescription
from deployments.contract.errors import BadRequest, RowFailed, UnsupportedMedia
from deployments.gateway.http.large_answers import STEP, LargeAnswer, Parts, listed
from deployments.gateway.http.protocols import json_body
from deployments.gateway.http.protocols.tensors import (
    ClassifyCall,
    Encoded,
    ExternalInput,
    documented,
    put_file,
)

MAX_INSTANCES = 2048
_LABELS_STEP = 1000
_SCORE_BYTES, _LABELS_BYTES = 44, 40  # of JSON around a label, and around a row's labels
_JSON = ("", "application/json", "application/x-www-form-urlencoded")  # the last is curl's own
IMAGE_MEDIA = ("image/jpeg", "image/png", "application/octet-stream")
_TopK = Annotated[int, msgspec.Meta(ge=1)]
_BOUNDARY = re.compile(r'boundary=(?:"([^"]{1,200})"|([^\s;"]{1,200}))', re.IGNORECASE)
MAX_HEAD_BYTES = 8192  # of one part: patterns below look at all of it
_TINY = np.finfo(np.float64).tiny
_HAS_FILE = re.compile(rb"(?:^|\n)content-disposition:[^\r\n]*;\s*filename", re.IGNORECASE)
_FIELD = re.compile(rb'(?:^|\n)content-disposition:[^\r\n]*;\s*name="?top_k"?', re.IGNORECASE)


_FILE = documented("A JPEG or PNG file.", contentEncoding="base64")
_TEXT = documented(minLength=1)
_URL = documented("Of a JPEG or PNG file.", format="uri")
_INSTANCES = documented("All images or all texts.", minItems=1, maxItems=MAX_INSTANCES)


class Instance(msgspec.Struct, forbid_unknown_fields=True):
    b64: Annotated[str | None, _FILE] = None
    text: Annotated[str | None, _TEXT] = None
    url: Annotated[str | None, _URL] = None


class ClassifyRequest(msgspec.Struct):
    instances: Annotated[list[Annotated[str, _TEXT] | Instance], _INSTANCES]
    top_k: _TopK | None = None


class CountedRequest(msgspec.Struct):
    """Refuses too many instances before there is an object of any."""

    instances: json_body.places(MAX_INSTANCES)  # type: ignore[valid-type]


_bodies = msgspec.json.Decoder(ClassifyRequest)
_counted = msgspec.json.Decoder(CountedRequest)


def decode(body: bytes, content_type: str, query: bytes) -> ClassifyCall:
    """The call; `BadRequest` names what is wrong, `UnsupportedMedia` a body of another kind."""
    media = content_type.split(";", 1)[0].strip().lower()
    if media in _JSON:
        return _from_json(body)
    if media in IMAGE_MEDIA:
        if not body:
            raise BadRequest("the body is empty; it must be a JPEG or PNG file")
        return ClassifyCall(None, [body], _top_k(query))
    if media == "multipart/form-data":
        return _from_form(body, content_type, _top_k(query))
    raise UnsupportedMedia(
        "Content-Type must be application/json, image/jpeg, image/png or multipart/form-data"
    )


def _from_json(body: bytes) -> ClassifyCall:
    try:
        if len(body) > json_body.SLICE_BYTES:
            _counted.decode(body)
    except json_body.DECODE_ERRORS as error:
        raise json_body.fault(error, body) from None
    request = json_body.read(_bodies, body)
    _check_count(len(request.instances))
    given = [_instance(index, instance) for index, instance in enumerate(request.instances)]
    texts = [each.text for each in given if each.text is not None]
    if texts and len(texts) < len(given):
        raise BadRequest("instances must be all images or all texts", param="instances")
    if texts:
        return ClassifyCall(texts, None, request.top_k)
    images: list[bytes] = []
    external: list[ExternalInput] = []
    for index, each in enumerate(given):
        if each.url is not None:
            label = f"instances[{index}].url"
            external.append(ExternalInput(label, each.url, partial(put_file, images, index)))
        images.append(b"" if each.url is not None else _bytes(index, each.b64 or ""))
    return ClassifyCall(None, images, request.top_k, tuple(external))


def _instance(index: int, instance: str | Instance) -> Instance:
    """With one of its fields."""
    if isinstance(instance, str):
        instance = Instance(text=instance)
    if (instance.b64, instance.text, instance.url).count(None) != 2:
        raise BadRequest(
            f"instances[{index}] must be a text, {{'text': ...}}, {{'b64': ...}} or {{'url': ...}}",
            param="instances",
        )
    if instance.text == "":
        raise BadRequest(f"instances[{index}] is empty", param="instances")
    return instance


def _bytes(index: int, b64: str) -> bytes:
    try:
        return base64.b64decode(b64, validate=True)
    except (binascii.Error, ValueError) as error:
        raise BadRequest(f"instances[{index}].b64 is not base64: {error}", param="b64") from None


def from_base64(data: bytes) -> bytes:
    """A JPEG or PNG file that came as base64, which is all that JSON can carry; else as it is."""
    if not data.startswith((b"/9j/", b"iVBORw0KGgo")):
        return data
    try:
        return base64.b64decode(data, validate=True)
    except binascii.Error:
        return data


def _top_k(query: bytes) -> int | None:
    values = parse_qs(query.decode("latin-1"), keep_blank_values=True).get("top_k")
    return None if values is None else _number(values[-1])


def _number(text: str) -> int:
    if not (text.isascii() and text.isdigit() and 1 <= len(text) <= 9 and int(text) >= 1):
        raise BadRequest("top_k must be a whole number of at least 1", param="top_k")
    return int(text)


def _from_form(body: bytes, content_type: str, top_k: int | None) -> ClassifyCall:
    """Every part with a file name is an image, in order; a field `top_k` counts as in JSON."""
    boundary = _BOUNDARY.search(content_type)
    if boundary is None:
        raise BadRequest("multipart/form-data needs its boundary in Content-Type")
    mark = b"\r\n--" + (boundary[1] or boundary[2]).encode("latin-1")
    sections = (b"\r\n" + body).split(mark, MAX_INSTANCES + 3)
    if len(sections) > MAX_INSTANCES + 2:
        _check_count(len(sections) - 2)
    if len(sections) < 2 or not sections[-1].startswith(b"--"):
        raise BadRequest("the multipart body does not end with its boundary")
    images: list[bytes] = []
    _check_count(len(sections) - 2)
    for section in sections[1:-1]:
        head, blank, content = section.partition(b"\r\n\r\n")
        if not blank:
            raise BadRequest("the headers of a part of the multipart body do not end")
        if len(head) > MAX_HEAD_BYTES:
            raise BadRequest(
                "the headers of a part of the multipart body are longer than "
                f"{MAX_HEAD_BYTES} bytes"
            )
        if _HAS_FILE.search(head):
            images.append(content)
        elif _FIELD.search(head):
            top_k = _number(content.decode("latin-1").strip())
    if not images:
        raise BadRequest("the multipart body has no file; send each image as one")
    return ClassifyCall(None, images, top_k)


def _check_count(count: int) -> None:
    if not 1 <= count <= MAX_INSTANCES:
        raise BadRequest(
            f"instances has {count} entries; it must have 1 to {MAX_INSTANCES}", param="instances"
        )


def check(call: ClassifyCall, d: ModelDescription) -> None:
    """`BadRequest` where the model does not classify, or not what was sent."""
    if d.classes is None or d.task == "rerank":
        raise BadRequest(f"model {d.name} does not classify; its task is {d.task}", param="model")
    if call.images is not None and d.image is None:
        raise BadRequest(f"model {d.name} takes no images", param="instances")
    if call.images is None and d.image is not None:
        raise BadRequest(
            f"model {d.name} takes images: {{'b64': ...}} or image/jpeg, image/png",
            param="instances",
        )


def scores(outputs: Sequence[np.ndarray[Any, Any]], classes: Classes) -> np.ndarray[Any, Any]:
    """float64 [rows, classes]: activation(logits / temperature), each row's own. Raises
    RowFailed."""
    raw = np.stack([np.asarray(row, np.float64).reshape(-1) for row in outputs])
    if raw.shape[1] != len(classes.labels) or not np.isfinite(raw).all():
        raise _not_scores()
    if classes.activation == "identity":
        return raw
    if classes.activation == "sigmoid":
        return _sigmoid((_logit(raw) if classes.probabilities else raw) / classes.temperature)
    if classes.probabilities:
        raw = np.log(np.maximum(raw, _TINY))
    raw = raw / classes.temperature
    raw = np.exp(raw - raw.max(axis=1, keepdims=True))
    probabilities: np.ndarray[Any, Any] = raw / raw.sum(axis=1, keepdims=True)
    return probabilities


def check_scores(row: np.ndarray[Any, Any], classes: Classes) -> None:
    """Raises RowFailed for what is not one finite number a class."""
    if row.size != len(classes.labels) or not np.isfinite(row).all():
        raise _not_scores()


def _logit(probabilities: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    true, false = (np.maximum(p, _TINY) for p in (probabilities, 1 - probabilities))
    logits: np.ndarray[Any, Any] = np.log(true) - np.log(false)
    return logits


def _sigmoid(logits: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    small = np.exp(-np.abs(logits))  # of the side that cannot overflow
    likely: np.ndarray[Any, Any] = np.where(logits >= 0, 1.0, small) / (1.0 + small)
    return likely


def _not_scores() -> RowFailed:
    return RowFailed("the model's output is not one finite number a class")


def prediction_bytes(call: ClassifyCall, classes: Classes) -> int:
    """Of one row's labels as JSON, about."""
    labels = min(call.top_k or classes.top_k, len(classes.labels))
    return _LABELS_BYTES + labels * (_SCORE_BYTES + _mean_bytes(classes.labels))


@lru_cache(64)
def _mean_bytes(labels: tuple[str, ...]) -> int:
    return len(orjson.dumps(labels)) // len(labels)


def encode(
    call: ClassifyCall, outputs: Sequence[np.ndarray[Any, Any]], d: ModelDescription
) -> Encoded:
    """`outputs`: the row of the classes' output of each instance."""
    assert d.classes is not None
    top_k = call.top_k or d.classes.top_k
    body = {
        "model": d.name,
        "version": d.version,
        "predictions": [
            _prediction(row, _best(row, top_k), d.classes) for row in scores(outputs, d.classes)
        ],
    }
    return Encoded(orjson.dumps(body))


def pieces(
    call: ClassifyCall, outputs: Sequence[np.ndarray[Any, Any]], d: ModelDescription
) -> LargeAnswer:
    """As `encode`, of a large answer."""
    assert d.classes is not None
    return LargeAnswer(_parts(call.top_k or d.classes.top_k, outputs, d, d.classes))


def _parts(
    top_k: int, outputs: Sequence[np.ndarray[Any, Any]], d: ModelDescription, classes: Classes
) -> Parts:
    for row in outputs:
        check_scores(row, classes)
        yield b""
    yield orjson.dumps({"model": d.name, "version": d.version})[:-1] + b',"predictions":'
    rows = max(1, STEP // len(classes.labels))
    named = [b'{"label":%b,"score":' % orjson.dumps(label) for label in classes.labels]
    yield from listed(
        _large_prediction(row, top_k, classes, named)
        for start in range(0, len(outputs), rows)
        for row in scores(outputs[start : start + rows], classes)
    )
    yield b"}"


def _large_prediction(
    row: np.ndarray[Any, Any], top_k: int, classes: Classes, named: list[bytes]
) -> Parts:
    """`named`: each label's JSON up to its score."""
    best = _best(row, top_k)
    if classes.threshold and row[best[0]] < classes.threshold:
        yield orjson.dumps(_prediction(row, best[:1], classes))
        return
    yield b'{"labels":['
    for start in range(0, len(best), _LABELS_STEP):
        some = best[start : start + _LABELS_STEP]
        scored = orjson.dumps(row[some], option=orjson.OPT_SERIALIZE_NUMPY)[1:-1].split(b",")
        labels = [named[at] + score for at, score in zip(some, scored, strict=True)]
        yield (b"," if start else b"") + b"},".join(labels) + b"}"
    yield b'],"abstained":false}'


def _best(row: np.ndarray[Any, Any], top_k: int) -> list[int]:
    # Stable, so that equal scores come in the order of the classes.
    if len(row) <= max(top_k, _LABELS_STEP):
        best: list[int] = np.argsort(-row, kind="stable")[:top_k].tolist()
        return best
    among = np.flatnonzero(row >= np.partition(row, -top_k)[-top_k])
    return list(among[np.argsort(-row[among], kind="stable")[:top_k]].tolist())


def _prediction(row: np.ndarray[Any, Any], best: Sequence[int], classes: Classes) -> dict[str, Any]:
    labels: list[dict[str, Any]]
    labels = [{"label": classes.labels[at], "score": float(row[at])} for at in best]
    if classes.threshold and labels[0]["score"] < classes.threshold:
        return {"labels": [], "abstained": True, "best_guess": labels[0]}
    return {"labels": labels, "abstained": False}
