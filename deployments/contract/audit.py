"""Who changed what, when, and what came of it: one JSON line a change, only ever appended.

Lines hold names, ids and digests: no key, no hash of one, nothing of any request that is answered.
They go to the file that the environment names, one `write` each, so that several processes may
append to it and it may be moved away at any time; without one (on a cluster) they are log lines of
`headrace.audit`, written whatever the log's level is. A line that cannot be written stops no
change: it is logged, and says so.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from deployments.contract import line_files

AUDIT_FILE = "HEADRACE_AUDIT_FILE"
DONE, REFUSED, FAILED = "done", "refused", "failed"
_LONGEST_DETAIL = 500
_DIGITS = 12
_LONGEST_NAME = 100
logger = logging.getLogger("headrace.audit")
logger.setLevel(logging.INFO)


@dataclass(frozen=True, slots=True)
class AuditLine:
    """`actor`: "key ID", "user NAME (UID)" or a process of ours; `verb` and `object`: what was done
    to what; `before`, `after`: digests of it, "" where there are none; `outcome`: done, refused or
    failed, and `detail` why; `source`: where it came from."""

    actor: str
    verb: str
    object: str
    source: str
    before: str = ""
    after: str = ""
    outcome: str = DONE
    detail: str = ""


def record(line: AuditLine, file: Path | None = None) -> None:
    """Into `file`, else into the environment's, else into the log."""
    path = file or (Path(os.environ[AUDIT_FILE]) if os.environ.get(AUDIT_FILE) else None)
    line = replace(line, detail=line.detail[:_LONGEST_DETAIL])
    if path is not None:
        try:
            line_files.append(path, text(line, time.time()).encode())
            return
        except OSError as fault:
            logger.error("the audit file %s cannot be written: %s", path, fault)
    logger.info("audit", extra=_fields(line))


def text(line: AuditLine, wall_s: float) -> str:
    """One line, its end included; control characters are escaped by JSON."""
    moment = datetime.fromtimestamp(wall_s, UTC).isoformat(timespec="milliseconds")
    return json.dumps({"time": moment.replace("+00:00", "Z"), **_fields(line)}) + "\n"


def _fields(line: AuditLine) -> dict[str, str]:
    return {name: value for name, value in asdict(line).items() if value}


def digest(content: str) -> str:
    return hashlib.sha256(content.encode()).hexdigest()[:_DIGITS]


def nameable(name: str) -> str:
    """What somebody gave as a key's id; a key that was taken for its id is not written down."""
    return "?" if name.startswith("hr_") else name[:_LONGEST_NAME]


def user(uid: int | None = None) -> str:
    """The operating system's user; whose this process is unless it is said."""
    uid = os.getuid() if uid is None else uid
    try:
        name = _name_of(uid)  # not as the environment says
    except (ImportError, KeyError, OSError):
        name = "?"
    return f"user {name} ({uid})"


def _name_of(uid: int) -> str:
    import pwd

    return pwd.getpwuid(uid).pw_name


@contextmanager
def audited(line: AuditLine, file: Path | None = None) -> Iterator[Callable[[AuditLine], None]]:
    """Records what is done inside when it ends: as done, or as failed by what it raised. What is
    given replaces the line with one that knows more."""
    known = [line]
    try:
        yield known.append
    except BaseException as fault:
        detail = f"{type(fault).__name__}: {fault}"
        record(replace(known[-1], outcome=FAILED, detail=detail), file)
        raise
    record(known[-1], file)
