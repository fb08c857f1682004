"""`headrace logs MODEL` and `headrace why REQUEST_ID`: what a server's processes wrote of them.

On this machine these are the lines of the server's log that name the model, those of gateways
included. On a cluster they are what the model's replicas wrote, each with its replica before it.
Lines that exist already are sorted by their time; a line without one belongs to the one before it.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import json
import os
import queue
import re
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TextIO

import click

from deployments.contract.rollout.terms import canary_of
from deployments.control.dashboard import (
    ClusterError,
    RayDashboard,
    ServeRest,
    gateway_actors,
    replica_actors,
    replica_log,
)
from deployments.control.supervisor import server_files
from deployments.control.supervisor.server_files import NoServer
from deployments.process.logs import FIELDS
from deployments.tools.where import Where

Stamped = tuple[str, str, str]  # time, source ("": not shown) and text
_QUEUED_LINES = 10_000  # between the reading threads and the printer, at most
_LOOKS_S = 0.2
_INTERRUPTED = 130
_TEXT_FIELD = re.compile(rf" ({'|'.join(FIELDS)})=(.*?)(?= (?:{'|'.join(FIELDS)})=|$)")
_STAMP = re.compile(r"\d{4}-\d\d-\d\dT[\d:.]+Z")


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which lines to print."""

    since_s: int | None = None  # only lines of the last so many seconds
    tail: int | None = None  # only so many last lines; on a cluster of each replica
    follow: bool = False  # go on, until Ctrl-C


def show(model: str, where: Where, wanted: Wanted) -> int:
    """Print the lines. Returns the exit code: 1 if there is none. Raises NoServer, ClusterError."""
    streams = _here(model, where, wanted) if where.address is None else _there(model, where, wanted)
    begin = "" if wanted.since_s is None else _ago(wanted.since_s)
    printed = 0
    try:
        for stamp, source, text in interleaved(streams, follow=wanted.follow):
            if stamp >= begin:
                click.echo(f"{source} | {text}" if source else text)
                printed += 1
    except KeyboardInterrupt:
        return _INTERRUPTED
    if not printed:
        click.echo(f"there is no line about {model}", err=True)
    return 0 if printed else 1


def why(request_id: str, where: Where) -> int:
    """Print the decisions about one request, in order. Returns the exit code: 1 if there are none.
    Raises NoServer, ClusterError."""
    if where.address is None:
        path = _log_file(where)
        file = _opened(path)
        streams: list[Iterable[str]] = [_older(path), file]
    else:
        dashboard = where.dashboard()
        actors = gateway_actors(ServeRest(dashboard).details())
        streams = [_of_replica(dashboard, *each, Wanted()) for each in actors.items()]
    lines = (line for stream in streams for line in stream if request_id in line)
    said = (found for found in map(_fields, lines) if found.get("request_id") == request_id)
    told = (found for found in said if found["ts"] and "decision" in found)
    decisions = sorted(told, key=lambda found: found["ts"])
    if not decisions:
        click.echo(
            f"no decision about request {request_id} is in the log. Decisions are logged where "
            "gateway.log.decisions is true; a log keeps its newest lines only.",
            err=True,
        )
        return 1
    start = datetime.fromisoformat(decisions[0]["ts"])
    click.echo(f"request {request_id}, from {decisions[0]['ts']}")
    for found in decisions:
        at_ms = (datetime.fromisoformat(found["ts"]) - start).total_seconds() * 1e3
        where_to = (
            f"{found['model']}: {found['decision']}" if found.get("model") else found["decision"]
        )
        click.echo(f"{at_ms:7.0f} ms  {found.get('event', ''):<9} {where_to}")
        if found.get("reason"):
            click.echo(f"{'':22}{found['reason']}")
        if found.get("suppressed"):
            click.echo(f"{'':22}({found['suppressed']} lines of all requests were left out before)")
    return 0


def interleaved(streams: Sequence[Iterator[Stamped]], *, follow: bool) -> Iterator[Stamped]:
    """The lines of all streams: sorted, or with `follow` as they come."""
    return _as_they_come(streams) if follow else heapq.merge(*streams, key=lambda each: each[0])


def _as_they_come(streams: Sequence[Iterator[Stamped]]) -> Iterator[Stamped]:
    """Yields lines in the order of arrival until every stream has ended.

    A stream's thread puts None at its end, or the exception that ended it, which is raised here.
    """
    arrived: queue.Queue[Stamped | Exception | None] = queue.Queue(_QUEUED_LINES)

    def read(stream: Iterator[Stamped]) -> None:
        try:
            for each in stream:
                arrived.put(each)
            arrived.put(None)
        except Exception as error:
            arrived.put(error)

    for stream in streams:
        threading.Thread(target=read, args=(stream,), daemon=True).start()
    open_streams = len(streams)
    while open_streams:
        each = arrived.get()
        if isinstance(each, Exception):
            raise each
        if each is None:
            open_streams -= 1
        else:
            yield each


def _ago(seconds: int) -> str:
    """The time so many seconds ago, as log lines write it."""
    then = datetime.now(UTC) - timedelta(seconds=seconds)
    return then.isoformat(timespec="milliseconds").replace("+00:00", "Z")


# ---- on a cluster -------------------------------------------------------------------------------


def _there(model: str, where: Where, wanted: Wanted) -> list[Iterator[Stamped]]:
    dashboard = where.dashboard()
    actors = replica_actors(ServeRest(dashboard).details(), model)
    return [
        _stamped(_of_replica(dashboard, name, actor, wanted), name)
        for name, actor in actors.items()
    ]


def _of_replica(dashboard: RayDashboard, name: str, actor: str, wanted: Wanted) -> Iterator[str]:
    try:
        yield from replica_log(dashboard, actor, wanted.tail, follow=wanted.follow)
    except ClusterError as error:  # its node may be gone; the others' logs are still there
        click.echo(f"{name}: {error}", err=True)


def _stamped(lines: Iterable[str], source: str = "") -> Iterator[Stamped]:
    stamp = ""
    for text in lines:
        stamp = _fields(text)["ts"] or stamp
        yield stamp, source, text


def _fields(line: str) -> dict[str, str]:
    """The fields of a line, as JSON or as text; `ts` is "" for a line without a time."""
    try:
        found = json.loads(line).items()
    except (ValueError, AttributeError):
        stamp = line.partition(" ")[0]
        found = _TEXT_FIELD.findall(line.rstrip("\n"))
        return {**dict(found), "ts": stamp if _STAMP.fullmatch(stamp) else ""}
    return {"ts": ""} | {name: str(value) for name, value in found}


# ---- on this machine ----------------------------------------------------------------------------


def _here(model: str, where: Where, wanted: Wanted) -> list[Iterator[Stamped]]:
    return [_stamped(_of_file(_log_file(where), {model, canary_of(model)}, wanted))]


def _log_file(where: Where) -> Path:
    port = where.server().port if where.port is None else where.port
    path = server_files.log_file(port, server_files.state_folder())
    if not path.is_file():
        raise NoServer(f"no server on port {port} has written a log: {path} does not exist")
    return path


def _of_file(path: Path, models: Set[str], wanted: Wanted) -> Iterator[str]:
    """The lines about these models; with `follow` also those that are yet to come."""
    file = _opened(path)
    found = _about(models, itertools.chain(_older(path), file))
    yield from found if wanted.tail is None else deque(found, wanted.tail)
    if wanted.follow:
        yield from _about(models, _appended(path, file))


def _opened(path: Path) -> TextIO:
    return path.open(encoding="utf-8", errors="replace")


def _older(path: Path) -> list[str]:
    """The lines of the file that this one has followed."""
    before = server_files.older_log(path)
    if not before.is_file():
        return []
    with _opened(before) as file:
        return [*file]


def _appended(path: Path, file: TextIO) -> Iterator[str]:
    """The lines that are written from now on, also to the file that takes this one's place."""
    while True:
        if line := file.readline():
            yield line
            continue
        with contextlib.suppress(FileNotFoundError):  # for a moment, while one replaces the other
            if path.stat().st_ino != os.fstat(file.fileno()).st_ino and not file.readline():
                file.close()
                file = _opened(path)
        time.sleep(_LOOKS_S)


def _about(models: Set[str], lines: Iterable[str]) -> Iterator[str]:
    """The lines that name one of the models. One without a time belongs to the one before it."""
    wanted = False
    for line in (each.rstrip("\n") for each in lines):
        found = _fields(line)
        wanted = found.get("model", "") in models if found["ts"] else wanted
        if wanted:
            yield line
