"""The audit log: who changed what, when, and with what result. One JSON line a change, appended.

Lines hold names, ids and digests. They never hold a key, the hash of a key, or any content of a
request.

Lines go to the file that the environment variable HEADRACE_AUDIT_FILE names. Each line is one
`write`, so several processes may append to the file, and it may be moved away at any time. Without
such a file (on a cluster) they go to the logger `headrace.audit`, whatever the log's level is. A
line that cannot be written to the file does not stop the change: the fault is logged, and the line
goes to the logger.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import pwd
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from deployments.process import line_files
from yaml_document.credentials import redacted

AUDIT_FILE = "HEADRACE_AUDIT_FILE"
DONE, REFUSED, FAILED = "done", "refused", "failed"
_LONGEST_DETAIL = 500  # characters
DIGITS = 12  # hex digits of a digest
_LONGEST_NAME = 100  # characters
logger = logging.getLogger("headrace.audit")
logger.setLevel(logging.INFO)


@dataclass(frozen=True, slots=True)
class AuditLine:
    """One change, as the audit log records it."""

    actor: str  # "key ID", "user NAME (UID)", or one of Headrace's own processes
    verb: str
    object: str  # what `verb` was done to
    source: str  # where the change came from
    before: str = ""  # digest of the object before the change, cut when written; "": it has none
    after: str = ""  # the same after the change
    outcome: str = DONE  # done, refused or failed
    detail: str = ""  # why it was refused or failed


def record(line: AuditLine, file: Path | None = None) -> None:
    """Append the line to `file`, else to the file that the environment names, else to the log."""
    path = file or (Path(os.environ[AUDIT_FILE]) if os.environ.get(AUDIT_FILE) else None)
    line = replace(
        line,
        before=line.before[:DIGITS],
        after=line.after[:DIGITS],
        detail=line.detail[:_LONGEST_DETAIL],
    )
    if path is not None:
        try:
            line_files.append(path, text(line, time.time()).encode())
            return
        except OSError as fault:
            logger.error("the audit file %s cannot be written: %s", path, fault)
    logger.info("audit", extra=_fields(line))


def text(line: AuditLine, wall_s: float) -> str:
    """The line as JSON, with its newline; JSON escapes control characters. `wall_s`: seconds since
    the epoch."""
    moment = datetime.fromtimestamp(wall_s, UTC).isoformat(timespec="milliseconds")
    return json.dumps({"time": moment.replace("+00:00", "Z"), **_fields(line)}) + "\n"


def _fields(line: AuditLine) -> dict[str, str]:
    return {name: value for name, value in asdict(line).items() if value}


def digest(content: str) -> str:
    """The first 12 hex digits of the content's SHA-256."""
    return hashlib.sha256(content.encode()).hexdigest()[:DIGITS]


def nameable(name: str) -> str:
    """A key's id as a caller gave it, safe to log: "?" if the caller gave a key itself."""
    return "?" if name.startswith("hr_") or redacted(name) != name else name[:_LONGEST_NAME]


def user() -> str:
    """The operating system's user that this process runs as."""
    uid = os.getuid()
    try:
        name = pwd.getpwuid(uid).pw_name  # not from the environment, which anyone may set
    except (KeyError, OSError):
        name = "?"
    return f"user {name} ({uid})"


@contextmanager
def audited(line: AuditLine, file: Path | None = None) -> Iterator[Callable[[AuditLine], None]]:
    """Record the change when the block ends: as done, or as failed if the block raises.

    The block gets a function. A line passed to that function replaces the recorded one, so that the
    block can add what it has learnt meanwhile.
    """
    known = [line]
    try:
        yield known.append
    except BaseException as fault:
        detail = f"{type(fault).__name__}: {fault}"
        record(replace(known[-1], outcome=FAILED, detail=detail), file)
        raise
    record(known[-1], file)
