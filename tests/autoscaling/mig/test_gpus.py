from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from autoscaling.mig.geometry import GPUS, with_usable
from tests.autoscaling.mig.exhaustive import OTHER_MIB, USABLE_MIB

H200 = GPUS["h200-141"]


def test_a_profile_is_not_as_large_as_its_name():
    small = H200.named("1g.18gb")
    assert small is not None
    assert small.usable_mib == 16_384
    assert H200.smallest(16_384) is small
    assert H200.smallest(16_385) is not small


def test_sizes_are_those_of_the_lists():
    for name, sizes in (USABLE_MIB | OTHER_MIB).items():
        assert tuple(each.usable_mib for each in GPUS[name].profiles) == sizes


@pytest.mark.parametrize("gpu", GPUS.values(), ids=lambda gpu: gpu.name)
def test_larger_kinds_have_at_least_as_much_memory_and_less_than_their_names(gpu):
    known = [each.usable_mib for each in gpu.profiles if each.usable_mib is not None]
    assert all(a <= b for a, b in pairwise(known))
    for each in gpu.profiles:
        named_gb = int(each.name.partition(".")[2].removesuffix("gb"))
        # MiB against decimal GB; the whole GPU's name is the product's.
        assert each.usable_mib is None or each.usable_mib * 1024**2 < named_gb * 1.07 * 10**9


def test_resources_are_spelt_as_the_device_plugin_and_as_ray_take_them():
    profile = H200.named("1g.18gb")
    assert profile is not None
    assert (profile.resource, profile.ray_resource) == ("mig-1g.18gb", "mig_1g_18gb")


def test_an_a30_has_three_profiles_on_four_slices():
    a30 = GPUS["a30"]
    found = {each.name: (each.compute, each.sms, each.ray_resource) for each in a30.profiles}
    assert found == {
        "1g.6gb": (1, 14, "mig_1g_6gb"),
        "2g.12gb": (2, 28, "mig_2g_12gb"),
        "4g.24gb": (4, 56, "mig_4g_24gb"),
    }
    assert (a30.memory_slices, a30.compute_slices, a30.usable_mib) == (4, 4, 24_002)


def test_the_documentation_has_every_size():
    page = (Path(__file__).parents[3] / "docs" / "mig.md").read_text()
    for gpu in GPUS.values():
        for each in gpu.profiles:
            size = "not known" if each.usable_mib is None else f"{each.usable_mib:,} MiB"
            assert f"{each.name} {size}" in page


def test_what_a_node_says_goes_before_the_table():
    told = with_usable(H200, {"1g.18gb": 16_128})
    assert told.smallest(16_384) is told.named("1g.35gb")


def test_a_size_that_is_not_known_is_not_planned_with_until_somebody_says_it():
    b200 = GPUS["b200-180"]
    assert b200.smallest(30_000) is None
    assert b200.largest().name == "1g.23gb"
    told = with_usable(b200, {"2g.45gb": 42_000})
    assert told.smallest(30_000) is told.named("2g.45gb")


@pytest.mark.parametrize(
    ("usable", "sentence"),
    [
        ({"1g.10gb": 9_000}, "has no profile 1g.10gb; must be one of 1g.18gb, 1g.35gb"),
        ({"1g.18gb": 40_000}, r"1g.18gb would have more memory \(40000 MiB\) than 1g.35gb"),
    ],
)
def test_sizes_that_cannot_be_are_refused(usable, sentence):
    with pytest.raises(ValueError, match=sentence):
        with_usable(H200, usable)
