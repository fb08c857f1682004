"""The table of GPUs that can be partitioned, with the usable memory of each of their slices.

A profile's name is not its size: 1g.18gb of an H200 holds 16,384 MiB. The table has the least
memory that a driver was seen to print or a process to find. A slice without a published figure has
none, and is not used in plans until the user gives one. Drivers differ by some percent, so what a
node reports (`nvidia-smi mig -lgip`, GPU feature discovery's `nvidia.com/mig-….memory`) takes
precedence over this table; see `with_usable`.

Sources: printed lists of `nvidia-smi mig -lgip` for A100, H100 and H200; runs of users for 3g of
H200 and 1g of B200; a profile of equal memory slices stands in for 4g.20gb, 1g.35gb and 4g.71gb.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise

from autoscaling.mig.geometry import KINDS, Kind


@dataclass(frozen=True, slots=True)
class Profile:
    """One kind of slice on one GPU. usable_mib: what a process finds, context included; None: not
    known. sms: streaming multiprocessors, None: not known."""

    name: str
    kind: int
    usable_mib: int | None
    sms: int | None

    @property
    def shape(self) -> Kind:
        return KINDS[self.kind]

    @property
    def resource(self) -> str:
        """What the device plugin (`mig.strategy: mixed`) calls it, without the vendor."""
        return "mig-" + self.name.replace("+", ".")

    @property
    def ray_resource(self) -> str:
        """The custom resource that a model asks for: `mig_1g_18gb`."""
        return "mig_" + self.name.replace(".", "_").replace("+", "_")


@dataclass(frozen=True, slots=True)
class Gpu:
    """profiles: one of each kind, in the order of `KINDS`."""

    name: str
    profiles: tuple[Profile, ...]

    @property
    def usable_mib(self) -> int | None:
        """Of the whole GPU while it is partitioned: its largest profile."""
        return self.profiles[-1].usable_mib

    def named(self, name: str) -> Profile | None:
        return next((each for each in self.profiles if each.name == name), None)

    def smallest(self, need_mib: int) -> Profile | None:
        """The cheapest slice that holds so much; None: none of known size does."""
        known = (each for each in self.profiles if each.usable_mib is not None)
        return next((each for each in known if (each.usable_mib or 0) >= need_mib), None)

    def largest(self) -> Profile:
        """The one with most memory, of those whose size is known."""
        return max(self.profiles, key=lambda each: each.usable_mib or 0)

    def unknown(self) -> tuple[Profile, ...]:
        return tuple(each for each in self.profiles if each.usable_mib is None)


def with_usable(gpu: Gpu, usable_mib: Mapping[str, int]) -> Gpu:
    """The GPU with what a node says of these profiles. Raises ValueError for one it has not, and
    for sizes that shrink from a kind to a larger one."""
    for name in usable_mib:
        if gpu.named(name) is None:
            have = ", ".join(each.name for each in gpu.profiles)
            raise ValueError(f"{gpu.name} has no profile {name}; must be one of {have}")
    told = tuple(replace(p, usable_mib=usable_mib.get(p.name, p.usable_mib)) for p in gpu.profiles)
    known = [each for each in told if each.usable_mib is not None]
    for small, large in pairwise(known):
        if (small.usable_mib or 0) > (large.usable_mib or 0):
            raise ValueError(
                f"{small.name} would have more memory ({small.usable_mib} MiB) than {large.name} "
                f"({large.usable_mib} MiB); must be at most that"
            )
    return replace(gpu, profiles=told)


def _gpu(name: str, rows: Iterable[tuple[str, int | None, int | None]]) -> Gpu:
    return Gpu(name, tuple(Profile(row[0], n, row[1], row[2]) for n, row in enumerate(rows)))


GPUS: Mapping[str, Gpu] = {
    gpu.name: gpu
    for gpu in (
        _gpu("a100-40", [
            ("1g.5gb", 4_864, 14), ("1g.10gb", 9_856, 14), ("2g.10gb", 9_856, 28),
            ("3g.20gb", 19_968, 42), ("4g.20gb", 19_968, 56), ("7g.40gb", 40_192, 98),
        ]),
        _gpu("a100-80", [
            ("1g.10gb", 9_728, 14), ("1g.20gb", 19_968, 14), ("2g.20gb", 19_968, 28),
            ("3g.40gb", 40_192, 42), ("4g.40gb", 40_192, 56), ("7g.80gb", 80_384, 98),
        ]),
        _gpu("h100-80", [
            ("1g.10gb", 9_984, 16), ("1g.20gb", 20_090, 26), ("2g.20gb", 20_090, 32),
            ("3g.40gb", 40_448, 60), ("4g.40gb", 40_448, 64), ("7g.80gb", 81_152, 132),
        ]),
        _gpu("h200-141", [
            ("1g.18gb", 16_384, 16), ("1g.35gb", 33_280, 26), ("2g.35gb", 33_280, 32),
            ("3g.71gb", 71_168, 60), ("4g.71gb", 71_168, 64), ("7g.141gb", 143_360, 132),
        ]),
        _gpu("b200-180", [
            ("1g.23gb", 20_992, None), ("1g.45gb", None, None), ("2g.45gb", None, None),
            ("3g.90gb", None, None), ("4g.90gb", None, None), ("7g.180gb", None, None),
        ]),
    )
}  # fmt: skip
