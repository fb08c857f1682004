from __future__ import annotations

import base64
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from deployments.contract.description import Classes, ModelDescription
from deployments.contract.errors import BadRequest, RowFailed, UnsupportedMedia
from deployments.gateway.http.protocols import classify
from deployments.gateway.http.protocols.tensors import ClassifyCall

Describe = Callable[..., ModelDescription]
CLASSES = Classes("logits", ("cat", "dog", "eel"), 2, 1.0, 0.0, False)
JSON = "application/json"


def b64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def decoded(value: Any) -> ClassifyCall:
    return classify.decode(json.dumps(value).encode(), JSON, b"")


def form(*parts: tuple[str, bytes], boundary: bytes = b"xx") -> bytes:
    """`parts`: (what follows form-data, content)."""
    sections = [
        b"--%s\r\nContent-Disposition: form-data%s\r\n\r\n%s\r\n" % (boundary, head.encode(), data)
        for head, data in parts
    ]
    return b"".join(sections) + b"--%s--\r\n" % boundary


def test_images_come_as_base64():
    call = decoded({"instances": [{"b64": b64(b"one")}, {"b64": b64(b"two")}], "top_k": 3})
    assert call == ClassifyCall(None, [b"one", b"two"], 3)


def test_texts_come_bare_or_named():
    assert decoded({"instances": ["a", {"text": "b"}]}) == ClassifyCall(["a", "b"], None, None)


@pytest.mark.parametrize("media", ["image/jpeg", "image/png; x=1", "application/octet-stream"])
def test_a_body_may_be_one_image(media):
    assert classify.decode(b"raw", media, b"top_k=2") == ClassifyCall(None, [b"raw"], 2)


def test_a_form_has_several_images_whose_bytes_are_kept():
    tricky = b"\r\n--x\r\n\x00\xff\r\n\r\n"
    body = form(
        ('; name="a"; filename="a.png"', tricky), ("; name=top_k", b"4"), ('; filename="b"', b"2")
    )
    call = classify.decode(body, 'multipart/form-data; boundary="xx"', b"")
    assert call == ClassifyCall(None, [tricky, b"2"], 4)


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ({}, "instances"),
        ({"instances": []}, "0 entries"),
        ({"instances": ["a"] * 2049}, "2049 entries"),
        ({"instances": ["a", {"b64": "AA=="}]}, "all images or all texts"),
        ({"instances": [{}]}, "instances[0] must be"),
        ({"instances": ["a", {"text": "a", "b64": "AA=="}]}, "instances[1] must be"),
        ({"instances": [""]}, "instances[0] is empty"),
        ({"instances": [{"b64": "AA=="}, {"b64": "A*"}]}, "instances[1].b64"),
        ({"instances": [{"url": "https://x", "b64": "AA=="}]}, "instances[0] must be"),
        ({"instances": ["a", {"url": "https://x"}]}, "all images or all texts"),
        ({"instances": [{"uri": "https://x"}]}, "uri"),
        ({"instances": ["a"], "top_k": 0}, "top_k"),
        ({"instances": [1]}, "instances[0]"),
    ],
)
def test_what_is_wrong_with_a_body_is_named(value, said):
    with pytest.raises(BadRequest) as refused:
        decoded(value)
    assert said in refused.value.message


@pytest.mark.parametrize("query", [b"top_k=0", b"top_k=-1", b"top_k=", b"top_k=1e3", b"top_k=x"])
def test_a_wrong_top_k_of_the_path_is_refused(query):
    with pytest.raises(BadRequest, match="top_k must be a whole number"):
        classify.decode(b"raw", "image/png", query)


@pytest.mark.parametrize(
    ("body", "content_type", "said"),
    [
        (b"", "multipart/form-data", "boundary"),
        (b"", "multipart/form-data; boundary=xx", "does not end"),
        (form(("; name=a", b"1")), "multipart/form-data; boundary=xx", "no file"),
        (form(("; filename=a", b"1"))[:-8], "multipart/form-data; boundary=xx", "does not end"),
        (b"--xx\r\nnothing\r\n--xx--", "multipart/form-data; boundary=xx", "headers of a part"),
        (b"", "image/png", "empty"),
    ],
)
def test_a_broken_form_is_refused(body, content_type, said):
    with pytest.raises(BadRequest, match=said):
        classify.decode(body, content_type, b"")


@pytest.mark.parametrize("media", ["image/webp", "text/plain", "video/mp4"])
def test_other_bodies_are_415(media):
    with pytest.raises(UnsupportedMedia, match="image/jpeg"):
        classify.decode(b"x", media, b"")


def answered(logits: list[float], description: ModelDescription, top_k: int | None = None) -> Any:
    call = ClassifyCall(["a"], None, top_k)
    (prediction,) = json.loads(classify.encode(call, [np.array(logits)], description).body)[
        "predictions"
    ]
    return prediction


def test_scores_are_a_softmax_best_first(description: Describe):
    found = answered([1.0, 3.0, 2.0], description(classes=CLASSES))
    exact = np.exp([3.0, 2.0]) / np.exp([1.0, 3.0, 2.0]).sum()
    assert [each["label"] for each in found["labels"]] == ["dog", "eel"]
    assert [each["score"] for each in found["labels"]] == pytest.approx(exact.tolist(), rel=1e-12)
    assert found["abstained"] is False


@pytest.mark.parametrize(("top_k", "count"), [(None, 2), (1, 1), (3, 3), (99, 3)])
def test_as_many_labels_as_asked_for_and_there_are(description: Describe, top_k, count):
    assert len(answered([1.0, 3.0, 2.0], description(classes=CLASSES), top_k)["labels"]) == count


def test_a_temperature_softens_scores_and_keeps_their_order(description: Describe):
    sharp = answered([1.0, 3.0, 2.0], description(classes=CLASSES))["labels"]
    soft = answered([1.0, 3.0, 2.0], description(classes=replace(CLASSES, temperature=4.0)))[
        "labels"
    ]
    assert [each["label"] for each in soft] == [each["label"] for each in sharp]
    assert soft[0]["score"] < sharp[0]["score"]


@pytest.mark.parametrize(("threshold", "abstains"), [(0.66, False), (0.67, True)])
def test_under_the_threshold_it_abstains_and_names_its_best_guess_apart(
    description: Describe, threshold, abstains
):
    found = answered([1.0, 3.0, 2.0], description(classes=replace(CLASSES, threshold=threshold)))
    assert found["abstained"] is abstains
    assert (found["labels"] == []) is abstains
    if abstains:
        assert found["best_guess"] == {"label": "dog", "score": pytest.approx(0.6652, abs=1e-4)}


def test_probabilities_stay_what_they_are_at_temperature_one(description: Describe):
    classes = replace(CLASSES, probabilities=True)
    found = answered([0.2, 0.7, 0.1], description(classes=classes), 3)["labels"]
    assert [each["score"] for each in found] == pytest.approx([0.7, 0.2, 0.1])


ONE = replace(CLASSES, labels=("relevant",), activation="sigmoid")


@pytest.mark.parametrize(("logit", "score"), [(0.0, 0.5), (2.0, 0.8808), (-2.0, 0.1192)])
def test_one_class_is_scored_by_a_sigmoid(description: Describe, logit, score):
    found = answered([logit], description(classes=ONE))["labels"]
    assert found == [{"label": "relevant", "score": pytest.approx(score, abs=1e-4)}]


def test_labels_that_do_not_exclude_each_other_are_scored_one_by_one(description: Describe):
    found = answered(
        [2.0, 2.0, -2.0], description(classes=replace(CLASSES, activation="sigmoid")), 3
    )
    assert [each["label"] for each in found["labels"]] == ["cat", "dog", "eel"]
    scores = [each["score"] for each in found["labels"]]
    assert scores == pytest.approx([0.8808, 0.8808, 0.1192], abs=1e-4)


def test_a_regression_is_answered_as_it_is_and_never_abstains(description: Describe):
    raw = replace(CLASSES, activation="identity")
    found = answered([-3.5, -7.0, -9.0], description(classes=raw))
    assert found["labels"][0] == {"label": "cat", "score": -3.5}
    assert found["abstained"] is False


@pytest.mark.parametrize("probability", [0.0, 0.25, 1.0])
def test_a_probability_of_one_class_stays_what_it_is(description: Describe, probability):
    classes = replace(ONE, probabilities=True)
    (found,) = answered([probability], description(classes=classes))["labels"]
    assert found["score"] == pytest.approx(probability)


@pytest.mark.parametrize(("logit", "score"), [(1e30, 1.0), (-1e30, 0.0)])
def test_a_huge_logit_of_one_class_overflows_nothing(description: Describe, logit, score):
    assert answered([logit], description(classes=ONE))["labels"][0]["score"] == score


def test_huge_logits_overflow_nothing(description: Describe):
    found = answered([1e30, -1e30, 0.0], description(classes=CLASSES), 1)["labels"]
    assert found == [{"label": "cat", "score": 1.0}]


@pytest.mark.parametrize("logits", [[1.0], [1.0, 2.0, float("nan")]])
def test_an_output_that_is_no_score_a_class_is_the_models_fault(description: Describe, logits):
    with pytest.raises(RowFailed):
        answered(logits, description(classes=CLASSES))


def test_base64_of_an_image_is_known_by_its_first_bytes():
    jpeg = b"\xff\xd8\xff\xe0more"
    assert classify.from_base64(b64(jpeg).encode()) == jpeg
    assert classify.from_base64(jpeg) == jpeg
    assert classify.from_base64(b"/9j/***") == b"/9j/***"


def test_a_part_with_endless_headers_is_refused_before_it_is_searched():
    head = b"content-disposition:" * 5000
    body = b"--b\r\n" + head + b"\r\n\r\nx\r\n--b--"
    with pytest.raises(BadRequest, match="headers of a part of the multipart body are longer"):
        classify.decode(body, "multipart/form-data; boundary=b", b"")


def test_a_form_of_nothing_but_boundaries_is_counted_no_further_than_it_may_be():
    with pytest.raises(BadRequest, match="2048"):
        classify.decode(b"--a\r\n" * 1_000_000, "multipart/form-data; boundary=a", b"")
