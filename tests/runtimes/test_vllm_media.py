"""What vLLM has made of an image is found by the tenant that sent it, and by nobody else."""

from __future__ import annotations

import pytest

from runtimes.vllm.media import Part, parts, salt

IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
OTHER_IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAB"}}
SOUND = {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}}
NAMED = {"type": "image_url", "image_url": None, "uuid": "logo"}
DISGUISED = {"type": "text", "text": "a", "image_url": None, "uuid": "acme/named logo"}


def name(part: Part, tenant: str) -> str:
    messages = [{"role": "user", "content": [{"type": "text", "text": "What?"}, dict(part)]}]
    found = parts(messages)
    salt(found, tenant)
    content = messages[0]["content"]
    assert content[0] == {"type": "text", "text": "What?"}  # type: ignore[index]
    return str(content[1]["uuid"])  # type: ignore[index]


@pytest.mark.parametrize(
    "part", [IMAGE, SOUND, NAMED, DISGUISED, {"image_url": "data:,"}, {"type": "new"}]
)
def test_a_part_is_the_tenants_own(part: Part) -> None:
    assert name(part, "acme") == name(part, "acme")
    assert name(part, "acme") != name(part, "other")


def test_what_differs_has_another_name() -> None:
    assert name(IMAGE, "acme") != name(OTHER_IMAGE, "acme")


def test_no_name_is_that_of_anothers_part() -> None:
    """Tenants' names have no slash."""
    theirs = name(IMAGE, "acme")
    for given in (theirs, theirs.removeprefix("acme/"), "../acme/logo", ""):
        assert not name({**NAMED, "uuid": given}, "other").startswith("acme/")
        assert name({**NAMED, "uuid": given}, "acme") != theirs
    assert name(NAMED, "acme") == DISGUISED["uuid"]
    assert name(DISGUISED, "other").startswith("other/")


def test_messages_without_parts_have_none() -> None:
    assert parts([{"role": "user", "content": "a"}, {"role": "assistant", "content": None}]) == []


def test_what_a_function_has_answered_may_hold_images() -> None:
    output = {"type": "function_call_output", "output": [{"type": "input_text"}, dict(IMAGE)]}
    assert parts([output, {"type": "function_call_output", "output": "text"}]) == [IMAGE]
