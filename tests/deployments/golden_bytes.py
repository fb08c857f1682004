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

from deployments.contract.codec import SPOKEN, WIRE

ROOT = Path(__file__).parent / "contract" / "golden"


@dataclass(frozen=True)
class Sample:
    """A value of a message, and how it is written for a version and read."""

    value: Any
    write: Callable[[Any, int], bytes]
    read: Callable[[bytes], Any]
    since: int = 3  # the first version that has the message
    # Its fields have names, so it is always written in the newest version; older bytes need only
    # be readable.
    by_name: bool = False


def bytes_of(samples: Mapping[str, Sample], version: int) -> dict[str, bytes]:
    return {
        name: sample.write(sample.value, version)
        for name, sample in samples.items()
        if version >= sample.since
    }


def stored(version: int, root: Path = ROOT) -> dict[str, bytes]:
    return {path.stem: path.read_bytes() for path in sorted((root / str(version)).glob("*.bin"))}


def complaints(
    samples: Mapping[str, Sample],
    versions: tuple[int, ...],
    root: Path = ROOT,
    newest: int = WIRE,
) -> Iterator[str]:
    """What a change to the messages broke; nothing if every version's bytes are what they were."""
    for version in versions:
        golden = stored(version, root)
        expected = {name for name, sample in samples.items() if version >= sample.since}
        for name in sorted(golden.keys() | expected):
            if name not in golden:
                yield f"{name} has no file for version {version}: write it"
            elif name not in expected:
                yield f"{name} of version {version} has no sample any more"
            else:
                yield from _complaints_of(samples[name], name, version, golden[name], newest)


def _complaints_of(
    sample: Sample, name: str, version: int, golden: bytes, newest: int
) -> Iterator[str]:
    must_equal = version == newest or not sample.by_name
    if must_equal and sample.write(sample.value, version) != golden:
        yield f"{name} has other bytes in version {version}: a new layout needs a new WIRE"
        return
    try:
        found = sample.read(golden)
    except Exception as fault:
        yield f"{name} of version {version} cannot be read: {fault}"
    else:
        # What an older version lacks is not read: what it has must be.
        same = (
            found == sample.value if version == newest else sample.write(found, version) == golden
        )
        if must_equal and not same:
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

    for path in write_missing(SAMPLES, SPOKEN):
        print(path)
