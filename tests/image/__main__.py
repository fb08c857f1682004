"""`python -m tests.image TARGET FOLDER [--ray]`: builds a target in plain folders and looks at it
(`make image-steps`); with `--ray`, starts a Ray node in it too."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

from tests.image import ray_in_a_pod
from tests.image.checks import CHECKS
from tests.image.folders import Builder, StepFailed


def main(target: str, folder: Path, with_ray: bool) -> int:
    """The number of checks that failed."""
    if os.geteuid() != 0 or not shutil.which("debootstrap"):
        sys.exit("needs root, and debootstrap (apt-get install debootstrap)")
    folder.mkdir(parents=True, exist_ok=True)
    try:
        built = Builder(folder).build(target)
    except StepFailed as why:
        sys.exit(str(why))
    failed = 0
    for check in (*CHECKS, *([ray_in_a_pod.serves] if with_ray else ())):
        words = check.__name__.replace("_", " ")
        try:
            print(f"ok      {words}: {check(built)}", flush=True)
        except AssertionError as why:
            failed += 1
            print(f"FAILED  {words}: {why}", flush=True)
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], Path(sys.argv[2]).resolve(), "--ray" in sys.argv[3:]))
