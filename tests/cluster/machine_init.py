"""The first process of a machine: makes it ready, then takes in whoever lost its parent.

Arguments: the host name, and the checkout that must stay where it is when `/tmp` is emptied (empty:
the mounts stay as they are). Run by its path with nothing but the standard library.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
from pathlib import Path


def mount(*words: str) -> None:
    subprocess.run(["mount", *words], check=True)


def own_folders(checkout: str) -> None:
    """A `/tmp` and a `/dev/shm` of this machine's own. What was in `/tmp` is gone from it but for
    the checkout, where it lies there."""
    new = Path("/mnt")
    mount("-t", "tmpfs", "-o", "size=4g,mode=1777", "tmpfs", str(new))
    if checkout.startswith("/tmp/"):
        same = new / Path(checkout).relative_to("/tmp")
        same.mkdir(parents=True)
        mount("--rbind", checkout, str(same))
    mount("--move", str(new), "/tmp")
    mount("-t", "tmpfs", "-o", "size=1g,mode=1777", "tmpfs", "/dev/shm")


def reap_for_ever() -> None:
    while True:
        try:
            os.wait()
        except ChildProcessError:
            # Whoever is adopted next ends with this signal.
            signal.sigwait({signal.SIGCHLD})


def main() -> None:
    name, checkout = sys.argv[1:]
    ctypes.CDLL(None).sethostname(name.encode(), len(name))
    if checkout:
        own_folders(checkout)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
    with contextlib.suppress(BrokenPipeError):
        print("ready", flush=True)
    reap_for_ever()


if __name__ == "__main__":
    main()
