"""Bills of materials name every package of an image's locks, with its digests."""

from __future__ import annotations

from typing import Any

import pytest

from deployments.tools.supply_chain import bills
from deployments.tools.supply_chain.lock_sets import IMAGES, Locked, canonical, locked

WHEEL, SOURCE = "sha256:" + "a" * 64, "sha256:" + "b" * 64
ONE = Locked("one", "1.2", "sys_platform == 'win32'", (WHEEL, SOURCE))


@pytest.mark.parametrize("image", list(IMAGES))
def test_every_package_of_the_locks_is_in_the_bill(image: str):
    packages = locked(IMAGES[image])
    listed = {identity(each): digests(each) for each in bills.bill(packages, image)["components"]}
    wanted: dict[tuple[str, str], set[str]] = {}
    for each in packages:
        wanted.setdefault((each.name, each.version), set()).update(each.digests)
    assert listed == wanted


def test_a_bill_says_whose_it_is_and_where_a_package_is_installed_at_all():
    document = bills.bill([ONE], "cpu")
    own = document["metadata"]["component"]
    assert (own["name"], own["bom-ref"]) == ("headrace", "headrace-cpu")
    (component,) = document["components"]
    assert component["bom-ref"] == component["purl"] == "pkg:pypi/one@1.2"
    assert component["properties"] == [{"name": "headrace:marker", "value": ONE.marker}]


def identity(component: dict[str, Any]) -> tuple[str, str]:
    return canonical(component["name"]), component["version"]


def digests(component: dict[str, Any]) -> set[str]:
    (distribution,) = component["externalReferences"]
    return {f"sha256:{each['content']}" for each in distribution["hashes"]}
