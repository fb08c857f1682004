"""Prints the results of `cluster status` and `cluster why` for a release on Kubernetes.

Rows, applications and causes are the caller's; this module neither reads the cluster nor judges.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from datetime import datetime

from rich.console import Console
from rich.table import Table
from rich.text import Text

from deployments.tools.kube.applications import applications
from deployments.tools.kube.release import clusters_of
from deployments.tools.kube.types import Application, Cause, Row, Snapshot, name_of

_HEADINGS = (
    "POD", "GROUP", "NODE", "DEVICE", "STATE", "READY", "RESTARTS", "AGE", "MODELS", "WAITS FOR",
)  # fmt: skip
_WIDTH = 250  # of output that is no terminal
_LONGEST = 110  # characters of a cause in the table; `why` prints it whole


def as_json(snapshot: Snapshot, rows: Sequence[Row]) -> str:
    return json.dumps(
        {
            "release": name_of(snapshot.service),
            "clusters": clusters_of(snapshot.service),
            "applications": [asdict(each) for each in applications(snapshot.service)],
            "pods": [asdict(row) for row in rows],
            "unread": snapshot.unread,
        },
        indent=2,
        default=lambda value: value.isoformat() if isinstance(value, datetime) else str(value),
    )


def show(
    snapshot: Snapshot, rows: Sequence[Row], now: datetime, console: Console | None = None
) -> None:
    """Prints the table; below it applications that do not run, and lists that the caller may not
    read."""
    target = console or _console()
    found = applications(snapshot.service)
    target.print(_title(snapshot))
    target.print(table(rows, found, now))
    for each in found:
        if not each.runs:
            target.print(_application_line(each))
    for said in snapshot.unread:
        target.print(Text(said, style="yellow"))


def table(rows: Sequence[Row], found: Sequence[Application], now: datetime) -> Table:
    made = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    for heading in _HEADINGS:
        right = heading in ("RESTARTS", "AGE")
        made.add_column(heading, overflow="fold", justify="right" if right else "left")
    by_model = {each.model: each for each in found}
    for row in rows:
        models = [_model(by_model[name]) for name in row.models if name in by_model]
        made.add_row(*_cells(row, ", ".join(models), now))
    return made


def explain(
    snapshot: Snapshot,
    service: Cause | None,
    not_running: Sequence[Application],
    rows: Sequence[Row],
    now: datetime,
    console: Console | None = None,
) -> None:
    """Prints a paragraph for each pod and application that is not ready.

    `service`: why the RayService as a whole is not ready.
    """
    target = console or _console()
    paragraphs = []
    if service is not None:
        paragraphs.append(_paragraph(f"RayService {name_of(snapshot.service)}", service, now))
    paragraphs += [_of_application(each) for each in not_running]
    paragraphs += [
        _paragraph(_called(row), row.waits_for, now) for row in rows if row.waits_for is not None
    ]
    for each in paragraphs:
        target.print(each, soft_wrap=True)
    if not paragraphs:
        target.print("nothing is wrong")
    for said in snapshot.unread:
        target.print(Text(said, style="yellow"))


def age(then: datetime | None, now: datetime) -> str:
    """`45 s`, `12 min`, `5 h`, `3 d`; with `in` before it for a time to come; "" for None."""
    if then is None:
        return ""
    seconds = (now - then).total_seconds()
    size = abs(seconds)
    for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if size >= 2 * length:
            said = f"{int(size // length)} {unit}"
            break
    else:
        said = f"{int(size)} s"
    return said if seconds >= 0 else f"in {said}"


def _console() -> Console:
    console = Console()
    return console if console.is_terminal else Console(width=_WIDTH)


def _title(snapshot: Snapshot) -> Text:
    status = snapshot.service.get("status", {})
    serving = status.get("activeServiceStatus", {}).get("rayClusterName") or "none yet"
    parts = [f"release {name_of(snapshot.service)}", f"cluster {serving}"]
    following = status.get("pendingServiceStatus", {}).get("rayClusterName")
    if following:
        parts.append(f"next cluster {following}")
    return Text("  ".join(parts))


def _cells(row: Row, models: str, now: datetime) -> Iterator[Text]:
    name = row.pod or f"({row.missing} not there)"
    yield Text(name, style="bold")
    yield from (Text(each) for each in (row.group, row.node or "-", row.device or "-"))
    yield Text(row.phase)
    yield Text("yes" if row.ready else "no", style="green" if row.ready else "yellow")
    yield Text(str(row.restarts), style="red" if row.restarts else "")
    yield Text(age(row.created, now) or "-")
    yield Text(models or "-")
    cause = row.waits_for
    yield Text("" if cause is None else _short(f"{cause.kind}: {cause.what}"), style="yellow")


def _model(found: Application) -> str:
    least, most = found.min_replicas, found.max_replicas
    count = f"{least}" if least == most else f"{least}-{most}"
    state = "" if found.runs else f" {found.state.lower() or 'not known yet'}"
    return f"{found.model} x{count}{state}"


def _application_line(found: Application) -> Text:
    said = f": {_short(found.message)}" if found.message else ""
    return Text.assemble((found.model, "bold"), f" is {_state(found)}{said}")


def _state(found: Application) -> str:
    return found.state.lower().replace("_", " ") or "not known to Serve yet"


def _of_application(found: Application) -> Text:
    where = ", ".join(found.groups) or "no group of this release: its resources fit none"
    said = f"\n  Serve says: {found.message}" if found.message else ""
    return Text.assemble(
        (f"model {found.model}", "bold"),
        f" is {_state(found)}{said}\n  its replicas fit in: {where}"
        f"\n  try: headrace kube logs {found.model}",
    )


def _called(row: Row) -> str:
    if row.pod:
        return f"pod {row.pod} (group {row.group})"
    return f"{row.missing} pod{'' if row.missing == 1 else 's'} of group {row.group}, not there"


def _paragraph(who: str, cause: Cause, now: datetime) -> Text:
    when = age(cause.since, now)
    told = f" ({when if when.startswith('in ') else when + ' ago'})" if when else ""
    return Text.assemble(
        (who, "bold"),
        f": {cause.kind}: {cause.what}\n  evidence{told}: {cause.evidence}\n  try: {cause.mend}",
    )


def _short(said: str) -> str:
    line = " ".join(said.split())
    return line if len(line) <= _LONGEST else f"{line[: _LONGEST - 1]}…"
