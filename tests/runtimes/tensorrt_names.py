"""`python tests/runtimes/tensorrt_names.py WHEEL`: which names that we use are in TensorRT's wheel?

WHEEL is tensorrt_cu13_bindings of the version in requirements/cuda.lock (1.3 MB, from the registry:
`pip download --no-deps tensorrt-cu13-bindings==VERSION`). It cannot be imported without TensorRT's
libraries, so the names are read from its strings: each ends with a zero byte, and a linker may
store one as the end of another. The result goes to tensorrt_names.json. A name that the wheel lacks
is an error. What belongs to which class is not told; conformance's fake says so, by TensorRT's
manual.
"""

from __future__ import annotations

import json
import re
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
STORED = Path(__file__).with_name("tensorrt_names.json")
MEMBER = "tensorrt_bindings/tensorrt.so"
sys.path.append(str(ROOT / "tests" / "conformance"))

import fake_tensorrt  # noqa: E402  the path is set above


def pinned() -> str:
    """The version of the bindings that images get."""
    lock = (ROOT / "requirements" / "cuda.lock").read_text(encoding="utf-8")
    found = re.search(r"^tensorrt-cu13-bindings==(\S+)", lock, re.MULTILINE)
    assert found is not None
    return found[1]


def missing(binary: bytes) -> list[str]:
    """The names that are not in the bindings."""
    return sorted(name for name in fake_tensorrt.names() if name.encode() + b"\0" not in binary)


def main(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        lacking = missing(archive.read(MEMBER))
    if lacking:
        sys.exit(f"{wheel.name} has no {', '.join(lacking)}")
    version = wheel.name.split("-")[1]
    found = {"version": version, "names": sorted(fake_tensorrt.names())}
    STORED.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
