"""How a gateway follows the registry: models come, change and go, and a registry that starts anew
or is away takes nothing from anybody."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from fake_engines import Engines, until
from followed_registry import Following

from deployments.contract import errors
from deployments.contract.description import (
    Generating,
    ModelDescription,
)
from deployments.gateway.models import catalogue

Describe = Callable[..., ModelDescription]


async def test_an_announced_model_is_found_and_ready_once_a_replica_runs(
    following: Following, description: Describe
) -> None:
    following.run(description())
    await following.registry.tell(description())
    assert following.catalogue.find("device").description == description()
    assert following.catalogue.ready("device")
    assert following.catalogue.all_ready


async def test_a_gateway_has_caught_up_when_it_reaches_what_runs(
    following: Following, description: Describe
) -> None:
    assert not following.catalogue.caught_up
    await following.registry.tell(description(), declared="device later")
    assert not following.catalogue.caught_up
    following.run(description())
    await following.registry.tell(description(), declared="device later")
    assert following.catalogue.caught_up  # nobody reaches the other one yet


async def test_a_declared_model_is_503_and_an_undeclared_one_404(following: Following) -> None:
    await following.registry.tell(declared="device")
    with pytest.raises(errors.NotReady):
        following.catalogue.find("device")
    with pytest.raises(errors.NotFound):
        following.catalogue.find("other")
    assert not following.catalogue.all_ready
    assert following.catalogue.waiting_for == ["device"]


async def test_an_unknown_model_is_503_until_all_models_are_known(following: Following) -> None:
    with pytest.raises(errors.NotReady):
        following.catalogue.find("other")
    await following.registry.tell(declared="device", complete=False)
    with pytest.raises(errors.NotReady):
        following.catalogue.find("other")
    await following.registry.tell(declared="device")
    with pytest.raises(errors.NotFound):
        following.catalogue.find("other")
    await following.registry.tell(declared="device", complete=False)  # the registry restarted
    with pytest.raises(errors.NotFound):
        following.catalogue.find("other")


async def test_readiness_waits_for_all_models_and_not_for_those_first_heard_of(
    following: Following, description: Describe
) -> None:
    following.run(description())
    await following.registry.tell(description(), complete=False)
    assert not following.catalogue.all_ready
    await following.registry.tell(description(), declared="device later")
    assert not following.catalogue.all_ready
    following.run(description(name="later"))
    await following.registry.tell(description(), description(name="later"))
    assert following.catalogue.all_ready


async def test_a_model_whose_replicas_cannot_be_reached_is_not_ready(
    following: Following, description: Describe
) -> None:
    following.run(description())
    await following.registry.tell(description())
    channel = following.catalogue.find("device").channel
    channel.kill("device-0")  # type: ignore[attr-defined]
    await until(lambda: not following.catalogue.ready("device"))
    assert following.catalogue.waiting_for == ["device"]
    assert following.catalogue.find("device").replicas == 0  # and requests wait for it


@pytest.mark.parametrize("asked_when_back", [True, False])
async def test_a_model_that_stays_out_of_reach_is_503_until_a_replica_is_back(
    following: Following,
    description: Describe,
    monkeypatch: pytest.MonkeyPatch,
    asked_when_back: bool,
) -> None:
    now = [1000.0]
    monkeypatch.setattr(catalogue.time, "monotonic", lambda: now[0])
    following.run(description())
    await following.registry.tell(description())
    served = following.catalogue.find("device")
    channel: Any = served.channel
    for _ in range(2):  # each time anew
        channel.kill("device-0")
        await until(lambda: served.replicas == 0)
        assert following.catalogue.find("device") is served
        now[0] += catalogue.HOLD_S
        with pytest.raises(errors.NotReady):
            following.catalogue.find("device")
        channel.revive("device-0")
        await until(lambda: served.replicas == 1)
        if asked_when_back:
            assert following.catalogue.find("device") is served


async def test_who_stands_in_is_known_before_a_model_was_ready(
    following: Following, description: Describe
) -> None:
    await following.registry.tell(declared="device", fallbacks={"device": "small"})
    assert following.catalogue.fallback_of("device") == "small"
    assert following.catalogue.fallback_of("other") == ""
    await following.registry.tell(declared="device", complete=False)
    assert following.catalogue.fallback_of("device") == "small"
    following.run(description())
    await following.registry.tell(description(), fallbacks={"device": "small"})
    assert following.catalogue.fallback_of("device") == description().reuse.fallback


async def test_how_often_serves_controller_was_ended_is_what_the_registry_says(
    following: Following,
) -> None:
    assert following.catalogue.controller_ends is None
    await following.registry.tell(controller_ends=2)
    assert following.catalogue.controller_ends == 2
    await following.registry.tell(complete=False)  # the registry restarted
    assert following.catalogue.controller_ends == 0


async def test_the_switch_reaches_the_models_that_are_there_and_those_to_come(
    following: Following, description: Describe
) -> None:
    def frozen() -> list[bool]:
        return [m.queue._settings.frozen for m in following.catalogue.served.values()]

    following.run(description())
    await following.registry.tell(description())
    following.catalogue.freeze(True)
    following.run(description(name="later"))
    await following.registry.tell(description(), description(name="later"))
    assert frozen() == [True, True]
    following.catalogue.freeze(False)
    assert frozen() == [False, False]


async def test_gateways_agree_on_their_places_and_every_model_hears_its_own(
    following: Following, description: Describe, monkeypatch: pytest.MonkeyPatch
) -> None:
    following.run(description())
    following.run(description(name="other"))
    await following.registry.tell(description(), description(name="other"))
    told: list[tuple[int, int]] = []
    for model in following.catalogue.served.values():
        monkeypatch.setattr(model.queue, "take_place", lambda *place: told.append(place))
    names = {"g9", "g10", "g2"}
    for name in sorted(names):
        following.catalogue.take_place(name, names - {name})
    assert told == [(0, 3), (0, 3), (1, 3), (1, 3), (2, 3), (2, 3)]


async def test_nothing_is_ready_before_anything_was_declared(following: Following) -> None:
    assert not following.catalogue.all_ready
    await following.registry.tell()
    assert not following.catalogue.all_ready


async def test_a_model_that_does_not_answer_holds_up_no_other(
    following: Following, description: Describe
) -> None:
    following.seeds["model-slow"] = asyncio.Event()
    following.run(description())
    await following.registry.tell(description(name="slow"), description())
    assert following.catalogue.ready("device")
    assert not following.catalogue.ready("slow")
    await following.registry.tell(description(name="slow"), description(), draining=True)
    assert following.catalogue.draining
    following.seeds["model-slow"].set()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert following.catalogue.find("slow")


async def test_a_model_that_cannot_be_taken_in_is_tried_again(
    following: Following, description: Describe, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect, failures = following._connect, [RuntimeError("no route"), RuntimeError("no route")]

    def stumble(*of: Any, **more: Any) -> Engines:
        if failures:
            raise failures.pop()
        return connect(*of, **more)

    monkeypatch.setattr(following.catalogue, "_connect", stumble)
    await following.registry.tell(description())
    await following.registry.tell(description())
    assert following.catalogue.find("device")


async def test_a_new_version_replaces_the_page_and_keeps_the_queue(
    following: Following, description: Describe
) -> None:
    following.run(description())
    await following.registry.tell(description())
    queue = following.catalogue.find("device").queue
    await following.registry.tell(description(version="2", digest="d2", generation=2))
    assert following.catalogue.find("device", "1").queue is queue  # no replica of "2" runs yet
    following.run(description(version="2", digest="d2"))
    await until(lambda: following.catalogue.ready("device"))
    assert following.catalogue.find("device", "2").queue is queue
    with pytest.raises(errors.NotFound):
        following.catalogue.find("device", "1")


async def test_a_profile_is_kept_until_another_version_brings_its_own(
    following: Following, description: Describe
) -> None:
    async def told(**changes: Any) -> Any:
        await following.registry.tell(description(**changes))
        return following.catalogue.find("device").queue._settings.profile

    first, second = ((1, 8, 0.1),), ((1, 8, 0.2),)
    assert await told(profile=first) == first
    assert await told(profile=second, generation=2) == first
    assert await told(profile=second, generation=3, version="2") == second


async def test_a_model_that_is_no_longer_declared_is_closed(
    following: Following, description: Describe
) -> None:
    following.run(description())
    await following.registry.tell(description(), description(name="other"))
    await following.registry.tell(description(name="other"))
    assert list(following.catalogue.served) == ["other"]
    with pytest.raises(errors.NotFound):
        following.catalogue.find("device")


async def test_a_model_that_is_awaited_and_then_withdrawn_is_not_waited_for(
    following: Following, description: Describe
) -> None:
    following.run(description())
    await following.registry.tell(description(), declared="broken")
    assert not following.catalogue.all_ready
    await following.registry.tell(description())
    assert following.catalogue.all_ready


async def test_an_optional_model_is_not_waited_for_and_answers_for_itself(
    following: Following, description: Describe, caplog: pytest.LogCaptureFixture
) -> None:
    await following.registry.tell(declared="device extra", optional=frozenset({"extra"}))
    assert not following.catalogue.all_ready
    following.run(description())
    await following.registry.tell(description(), declared="extra", optional=frozenset({"extra"}))
    assert following.catalogue.all_ready
    assert "ready without models that are optional: extra" in caplog.text
    assert following.catalogue.waiting_for == ["extra"]
    with pytest.raises(errors.NotReady, match="extra is declared but not ready yet"):
        following.catalogue.find("extra")
    following.run(description(name="extra"))
    await following.registry.tell(description(), description(name="extra"))
    assert following.catalogue.ready("extra")


async def test_a_request_to_a_model_that_cannot_start_is_told_why(
    following: Following, description: Describe
) -> None:
    reason = {"extra": "no file m.onnx"}
    await following.registry.tell(declared="extra", failures=reason)
    with pytest.raises(errors.NotReady, match="model extra cannot start: no file"):
        following.catalogue.find("extra")
    following.run(description(name="extra"))
    await following.registry.tell(description(name="extra"))
    assert following.catalogue.find("extra")


async def test_a_model_is_waited_for_until_it_is_known_to_be_optional(
    following: Following, description: Describe
) -> None:
    following.run(description())
    await following.registry.tell(description(), declared="extra")
    assert not following.catalogue.all_ready
    await following.registry.tell(description(), declared="extra", optional=frozenset({"extra"}))
    assert following.catalogue.all_ready


async def test_a_registry_that_starts_anew_forgets_no_optional_model(
    following: Following, description: Describe
) -> None:
    await following.registry.tell(declared="device extra", optional=frozenset({"extra"}))
    await following.registry.tell(declared="device extra", complete=False)
    assert following.catalogue.is_optional("extra")
    await following.registry.tell(declared="device extra")
    assert not following.catalogue.is_optional("extra")


async def test_a_model_between_anchors_keeps_taking_requests_while_its_replicas_run(
    following: Following, description: Describe
) -> None:
    following.run(description())
    await following.registry.tell(description())
    await following.registry.tell(declared="device")
    assert following.catalogue.find("device")
    assert not following.catalogue.ready("device")


async def test_requests_wait_for_a_model_that_loses_its_replicas_while_it_has_no_anchor(
    following: Following, description: Describe, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1000.0]
    monkeypatch.setattr(catalogue.time, "monotonic", lambda: now[0])
    following.run(description())
    await following.registry.tell(description())
    await following.registry.tell(declared="device")
    served = following.catalogue.find("device")
    now[0] += 2 * catalogue.HOLD_S
    channel: Any = served.channel
    channel.kill("device-0")
    await until(lambda: served.replicas == 0)
    assert following.catalogue.find("device") is served
    now[0] += catalogue.HOLD_S
    with pytest.raises(errors.NotReady):
        following.catalogue.find("device")


async def test_a_registry_that_starts_anew_takes_nothing_away(
    following: Following, description: Describe
) -> None:
    following.run(description())
    await following.registry.tell(description(), draining=True)
    await following.registry.tell(complete=False)
    assert following.catalogue.ready("device")
    assert following.catalogue.draining
    await following.registry.tell(description(version="2"), complete=False)
    assert following.catalogue.find("device").description.version == "2"
    await following.registry.tell(draining=False)
    assert following.catalogue.served == {}


async def test_a_registry_that_fails_is_asked_again(
    following: Following, description: Describe
) -> None:
    await following.registry.tell_raw(RuntimeError("the actor died"))
    await following.registry.tell(description())
    assert following.catalogue.find("device")


async def test_a_registry_that_says_nothing_new_takes_nothing_away(
    following: Following, description: Describe
) -> None:
    await following.registry.tell(description())
    await following.registry.tell_raw(b"")
    assert following.catalogue.find("device")


async def test_a_registry_of_a_version_that_cannot_be_read_is_named_once(
    following: Following,
    description: Describe,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(catalogue, "_PAUSE_S", 0.0)
    await following.registry.tell(description())
    for _ in range(3):
        await following.registry.tell_raw(b"\x01")
    assert following.registry.heard == 4
    assert len([each for each in caplog.records if each.levelname == "ERROR"]) == 1
    assert "a message of version 1; this code reads version 3 and later" in caplog.text
    assert following.catalogue.find("device")
    await following.registry.tell(description(version="2"))
    assert following.catalogue.find("device").description.version == "2"


async def test_a_superseded_announcement_is_given_up(
    following: Following, description: Describe
) -> None:
    following.seeds["model-device"] = asyncio.Event()
    await following.registry.tell(description(version="1"))
    await following.registry.tell(description(version="2"))
    following.seeds["model-device"].set()
    await following.registry.tell(description(version="2"), draining=True)
    assert following.catalogue.find("device").description.version == "2"
    await following.registry.tell()
    assert following.catalogue.served == {}


async def test_replicas_are_reached_as_what_they_are(
    following: Following, description: Describe
) -> None:
    chat = description(name="chat", task="generate", generating=Generating(8, 64, 4))
    following.run(chat)
    await following.registry.tell(chat, description())
    assert sorted(following.channels) == [("model-chat", "g", True), ("model-device", "g", False)]
    assert following.catalogue.find("chat").streams.waiting_rows == 0


async def test_a_model_that_begins_to_generate_has_a_queue_of_the_other_kind(
    following: Following, description: Describe
) -> None:
    following.run(description())
    await following.registry.tell(description())
    assert following.catalogue.find("device").batches.waiting_rows == 0
    other = description(version="2", task="generate", generating=Generating(8, 64, 4))
    await following.registry.tell(other)
    served = following.catalogue.find("device")
    assert served.streams.waiting_rows == 0
    with pytest.raises(errors.BadRequest):
        _ = served.batches
    await following.registry.tell(description(version="3"))
    assert following.catalogue.find("device").batches.waiting_rows == 0


async def test_a_registry_that_hangs_is_asked_again_and_takes_nothing_away(
    following: Following, description: Describe, monkeypatch: pytest.MonkeyPatch
) -> None:
    following.run(description())
    await following.registry.tell(description())
    monkeypatch.setattr(catalogue, "_WATCH_S", 0.0)
    monkeypatch.setattr(catalogue, "ANSWER_S", 0.001)
    monkeypatch.setattr(catalogue, "_PAUSE_S", 0.0)
    asked, answers = 0, following.registry.remote

    async def remote(revision: int, timeout_s: float) -> Any:
        nonlocal asked
        asked += 1
        return await answers(revision, timeout_s)

    monkeypatch.setattr(following.registry, "remote", remote)
    await following.registry.tell(description())  # ends the watch that had no limit
    await until(lambda: asked >= 3)
    assert following.catalogue.ready("device")


@pytest.mark.parametrize(
    ("tasks", "kind", "found"),
    [
        ({"later": "rerank"}, "rerank", (["device", "later"], False)),
        ({"later": "tensors"}, "rerank", (["device"], False)),
        ({"later": "embed"}, "rerank", (["device"], False)),
        ({"later": "embed"}, "sparse", ([], True)),  # its files tell
        ({}, "rerank", (["device"], True)),
    ],
)
async def test_models_of_a_kind_are_those_that_are_declared_ready_or_not(
    following: Following,
    description: Describe,
    tasks: dict[str, str],
    kind: str,
    found: tuple[list[str], bool],
) -> None:
    models = following.catalogue
    assert models.of_kind(kind, lambda name: True) == ([], True)
    ready = description(task="rerank")
    await following.registry.tell(ready, declared="later theirs", tasks={"theirs": kind, **tasks})
    assert models.of_kind(kind, lambda name: name != "theirs") == found
    failed = {"later": "no such file"}
    await following.registry.tell(
        ready, declared="later theirs", tasks={"theirs": kind, **tasks}, failures=failed
    )
    assert models.of_kind(kind, lambda name: name != "theirs") == (found[0], False)
