"""A file that names a setting which is gone is refused, and told what holds in its place."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from settings_files import DEVICE, mistakes, write

from deployments.settings.gone import GONE
from deployments.settings.scaling import PolicyFile
from deployments.settings.tree import Settings
from deployments.settings_files.load import load
from deployments.tools.console import settings_page
from yaml_document.shape import section_at

# Where each section of `GONE` is in a file; `policy` is a file of its own.
PLACES = {
    "lengths": "models.device.lengths", "batch": "models.device.batch",
    "queue": "models.device.queue", "generation": "models.device.generation",
    "prompts": "models.device.generation.prompts",
    "affinity": "models.device.generation.affinity", "hedge": "models.device.hedge",
    "outliers": "models.device.outliers", "silence": "models.device.silence",
    "crashes": "models.device.crashes", "scaling": "models.device.scaling",
    "record": "models.device.record",
    "rollout": "models.device.rollout", "agreement": "models.device.rollout.agreement",
    "pool": "scaling.pool", "limits": "gateway.limits", "preprocess": "gateway.preprocess",
}  # fmt: skip


@pytest.mark.parametrize("section", GONE)
def test_a_setting_that_is_gone_is_told_what_holds_in_its_place(
    tmp_path: Path, section: str
) -> None:
    if section == "policy":
        assert PolicyFile.gone == GONE["policy"]
        return
    place = PLACES[section]
    here = section_at(Settings, tuple(place.split(".")))
    assert here is not None
    for name, instead in GONE[section].items():
        assert name not in here.model_fields
        data = yaml.safe_load(DEVICE)
        within = data
        for step in place.split("."):
            within = within.setdefault(step, {})
        within[name] = 1
        said = mistakes(tmp_path, yaml.safe_dump(data))
        told = f"{place}.{name}: was removed; delete this line. In its place: {instead}"
        assert any(each.endswith(told) for each in said), said


def test_no_more_than_216_rows_describe_all_settings() -> None:
    assert settings_page.PAGE.read_text(encoding="utf-8").count("\n| `") <= 216


def test_the_first_ten_settings_are_a_file_that_loads(tmp_path: Path) -> None:
    _, text, _ = settings_page.page().split("```", 2)
    file = write(tmp_path, text.removeprefix("yaml\n"))
    assert load(file, here=False).gateway.port == 8000
