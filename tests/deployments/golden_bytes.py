"""Golden bytes: what each message is on the wire, by version.

`golden/VERSION/MESSAGE.bin` holds the bytes of a sample in that version. A release's files never
change: another layout is another version (docs/data-channel.md). `python
tests/deployments/golden_bytes.py` writes the files that are missing, and no others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent / "contract" / "golden"


@dataclass(frozen=True)
class Sample:
    """A value of a message, and how it is written for a version and read."""

    value: Any
    write: Callable[[Any, int], bytes]
    read: Callable[[bytes], Any]


def bytes_of(samples: Mapping[str, Sample], version: int) -> dict[str, bytes]:
    return {name: sample.write(sample.value, version) for name, sample in samples.items()}


def stored(version: int, root: Path = ROOT) -> dict[str, bytes]:
    return {path.stem: path.read_bytes() for path in sorted((root / str(version)).glob("*.bin"))}


def complaints(
    samples: Mapping[str, Sample], versions: tuple[int, ...], root: Path = ROOT
) -> Iterator[str]:
    """What a change to the messages broke; nothing if every version's bytes are what they were."""
    for version in versions:
        golden, now = stored(version, root), bytes_of(samples, version)
        for name in sorted(golden.keys() | now.keys()):
            if name not in golden:
                yield f"{name} has no file for version {version}: write it"
            elif name not in now:
                yield f"{name} of version {version} has no sample any more"
            elif golden[name] != now[name]:
                yield f"{name} has other bytes in version {version}: a new layout needs a new WIRE"
            elif samples[name].read(golden[name]) != samples[name].value:
                yield f"{name} of version {version} is read as something else"


def write_missing(samples: Mapping[str, Sample], versions: tuple[int, ...]) -> list[Path]:
    made = []
    for version in versions:
        for name, data in bytes_of(samples, version).items():
            path = ROOT / str(version) / f"{name}.bin"
            if not path.exists():
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(data)
                made.append(path)
    return made


if __name__ == "__main__":
    from golden_samples import SAMPLES

    from deployments.contract.version import SPOKEN

    for path in write_missing(SAMPLES, SPOKEN):
        print(path)
