"""Building once, whoever asks and whatever died before."""

from __future__ import annotations

import multiprocessing
import os
import threading
from pathlib import Path

import pytest

from runtimes.errors import LoadError
from runtimes.staging import KEPT_UNUSED_S, MANIFEST, exclusive, processor, staged


class Builder:
    """Writes two files and counts how often it was asked to."""

    def __init__(self) -> None:
        self.runs = 0

    def __call__(self, folder: Path) -> None:
        self.runs += 1
        (folder / "model.bin").write_bytes(b"weights")
        (folder / "sub").mkdir()
        (folder / "sub/graph.xml").write_text("<net/>")


def test_second_call_finds_what_the_first_built(tmp_path: Path) -> None:
    build = Builder()
    first = staged(tmp_path, ["a", "b"], build)
    assert staged(tmp_path, ["a", "b"], build) == first
    assert build.runs == 1
    assert (first / "sub/graph.xml").read_text() == "<net/>"


def test_every_part_makes_another_entry(tmp_path: Path) -> None:
    build = Builder()
    keys = (["a", "b"], ["a", "c"], ["ab"], ["a", "b", ""])
    assert len({staged(tmp_path, parts, build) for parts in keys}) == len(keys)


def test_failed_build_leaves_nothing_and_is_tried_again(tmp_path: Path) -> None:
    def fail(folder: Path) -> None:
        (folder / "half").write_text("x")
        raise LoadError("no")

    with pytest.raises(LoadError):
        staged(tmp_path, ["k"], fail)
    assert not [path for path in (tmp_path / "staged").iterdir() if path.is_dir()]
    build = Builder()
    staged(tmp_path, ["k"], build)
    assert build.runs == 1


def test_leftover_of_a_dead_build_is_removed(tmp_path: Path) -> None:
    entry = staged(tmp_path, ["k"], Builder())
    leftover = entry.with_name(f"{entry.name}.build-dead")
    leftover.mkdir()
    (leftover / "half").write_text("x")
    (entry / MANIFEST).unlink()
    staged(tmp_path, ["k"], Builder())
    assert not leftover.exists()


def break_manifest(entry: Path) -> None:
    (entry / MANIFEST).unlink()


def break_json(entry: Path) -> None:
    (entry / MANIFEST).write_text("[]")


def shorten(entry: Path) -> None:
    (entry / "model.bin").write_bytes(b"weight")


def lose(entry: Path) -> None:
    (entry / "sub/graph.xml").unlink()


@pytest.mark.parametrize("damage", [break_manifest, break_json, shorten, lose])
def test_damaged_entry_is_built_again(tmp_path: Path, damage) -> None:
    build = Builder()
    entry = staged(tmp_path, ["k"], build)
    damage(entry)
    assert staged(tmp_path, ["k"], build) == entry
    assert build.runs == 2
    assert (entry / "model.bin").read_bytes() == b"weights"


def test_files_added_later_do_not_spoil_an_entry(tmp_path: Path) -> None:
    build = Builder()
    entry = staged(tmp_path, ["k"], build)
    (entry / "compiled.blob").write_bytes(b"x")
    staged(tmp_path, ["k"], build)
    assert build.runs == 1


def test_threads_at_once_build_once(tmp_path: Path) -> None:
    build = Builder()
    threads = [threading.Thread(target=staged, args=(tmp_path, ["k"], build)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert build.runs == 1


def age(entry: Path, seconds: float) -> None:
    """As if the entry had last been asked for so long before now."""
    lock = entry.with_suffix(".lock")
    then = lock.stat().st_mtime - seconds
    os.utime(lock, (then, then))


@pytest.mark.parametrize(
    ("seconds", "kept"), [(0, True), (KEPT_UNUSED_S - 60, True), (KEPT_UNUSED_S + 60, False)]
)
def test_build_removes_what_was_not_used_for_long(tmp_path: Path, seconds, kept) -> None:
    old = staged(tmp_path, ["old"], Builder())
    age(old, seconds)
    staged(tmp_path, ["new"], Builder())
    assert old.exists() == kept


def test_leftovers_of_an_unused_entry_go_with_it(tmp_path: Path) -> None:
    old = staged(tmp_path, ["old"], Builder())
    old.with_name(f"{old.name}.build-dead").mkdir()
    age(old, KEPT_UNUSED_S + 60)
    fresh = staged(tmp_path, ["new"], Builder())
    assert [path for path in fresh.parent.iterdir() if path.is_dir()] == [fresh]


def test_use_keeps_an_entry(tmp_path: Path) -> None:
    build = Builder()
    old = staged(tmp_path, ["old"], build)
    age(old, KEPT_UNUSED_S + 60)
    staged(tmp_path, ["old"], build)
    staged(tmp_path, ["new"], Builder())
    assert old.exists()
    assert build.runs == 1


def test_held_entry_is_not_removed(tmp_path: Path) -> None:
    old = staged(tmp_path, ["old"], Builder())
    age(old, KEPT_UNUSED_S + 60)
    with exclusive(old):
        staged(tmp_path, ["new"], Builder())
    assert old.exists()
    staged(tmp_path, ["newer"], Builder())
    assert not old.exists()


def test_removed_entry_is_built_again(tmp_path: Path) -> None:
    build = Builder()
    age(staged(tmp_path, ["old"], build), KEPT_UNUSED_S + 60)
    staged(tmp_path, ["new"], Builder())
    again = staged(tmp_path, ["old"], build)
    assert build.runs == 2
    assert (again / "model.bin").read_bytes() == b"weights"


def _build_in_process(cache: Path, log: Path, barrier) -> None:
    def build(folder: Path) -> None:
        with log.open("a") as file:
            file.write("built\n")
        (folder / "file").write_text("x")

    barrier.wait()
    staged(cache, ["k"], build)


def test_processes_at_once_build_once(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    log, barrier = tmp_path / "log", context.Barrier(3)
    arguments = (tmp_path / "cache", log, barrier)
    workers = [context.Process(target=_build_in_process, args=arguments) for _ in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert [worker.exitcode for worker in workers] == [0, 0, 0]
    assert log.read_text() == "built\n"


def test_cache_that_cannot_be_written_is_a_load_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(LoadError, match="cache folder"):
        staged(tmp_path / "file", ["k"], Builder())


def test_processor_is_named_the_same_each_time() -> None:
    assert processor() == processor()
    assert len(processor().split()) >= 2
