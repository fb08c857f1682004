"""A home, a user's name and a short folder for temporary files, where the system gives none.

A container may run as a user id that nobody knows, without HOME. A deep TMPDIR leaves no room for
the names of Unix sockets, which Ray, vLLM and multiprocessing put below it. Libraries fail on
either with a traceback, so the environment is mended for this process and those that it starts.
Source: unix(7) for the limit; reading of ray 2.60 for what it puts below the folder.
"""

from __future__ import annotations

import os
import pwd
import stat
from collections.abc import Iterator, MutableMapping
from pathlib import Path

_SHORT = Path("/tmp")
# A socket's path has at most 107 bytes. Ray puts its own below this folder, such as
# ray/session_2026-01-31_23-59-59_123456_1234567/sockets/plasma_store.
_MAX_TEMPORARY_BYTES = 107 - 70
_NAMES = ("LOGNAME", "USER", "LNAME", "USERNAME")  # what getpass.getuser() reads, in its order


def mended(environ: MutableMapping[str, str], uid: int | None = None) -> Iterator[str]:
    """Mend the environment. Yields a sentence for each thing that a user may want otherwise.
    Raises PermissionError if the folder that is to be the home is somebody else's."""
    uid = os.getuid() if uid is None else uid
    account = _account(uid)
    if account is None and not any(environ.get(name) for name in _NAMES):
        environ["USER"] = f"uid-{uid}"
    if not environ.get("HOME") and account is None:
        home = _private(_SHORT / f"headrace-home-{uid}", uid)
        environ["HOME"] = str(home)
        yield (
            f"HOME is not set, and user id {uid} has no account here: {home} is the home folder; "
            "set HOME to keep caches and state elsewhere"
        )
    for name in ("TMPDIR", "RAY_TMPDIR"):
        given = environ.get(name, "")
        if len(os.fsencode(given)) > _MAX_TEMPORARY_BYTES:
            environ[name] = str(_SHORT)
            yield (
                f"{name} is too long for the paths of Unix sockets below it (at most "
                f"{_MAX_TEMPORARY_BYTES} bytes): temporary files are in {_SHORT}"
            )


def _account(uid: int) -> pwd.struct_passwd | None:
    try:
        return pwd.getpwuid(uid)
    except KeyError:
        return None


def _private(folder: Path, uid: int) -> Path:
    """The folder, made if need be, accessible to its owner alone."""
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != uid or stat.S_IMODE(found.st_mode) & 0o77:
        raise PermissionError(f"{folder} is not a private folder of user id {uid}: set HOME")
    return folder
