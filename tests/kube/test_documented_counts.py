"""What docs/kubernetes.md says was checked is as much as there is."""

from __future__ import annotations

import re

import pytest

from deployments.tools.observability.alerts import alerts
from tests.image.test_dockerfile import FAULTS as IN_THE_DOCKERFILE
from tests.kube.alert_cases import CASES
from tests.kube.chart import CHART, ROOT, value_sets
from tests.kube.test_hardening import PLANTED
from tests.kube.test_planted_faults import IN_BUILT_INS, IN_CRDS, SLIPS
from tests.kube.test_refusals import REFUSED
from tests.kube.test_rules import FAULTS as IN_THE_RULES
from tests.kube.test_transcription import CHANCES

PAGE = (ROOT / "docs" / "kubernetes.md").read_text()
# checkov is run by hand: that part says when, and over how many.
CHECKED = PAGE.partition("### checkov")[0]


@pytest.mark.parametrize(
    ("said", "there_are"),
    [
        (r"(\d+) value sets", len(value_sets())),
        (r"has (\d+) files to start from", len(list((CHART / "ci").iterdir()))),
        (r"(\d+) slips refused", len(SLIPS)),
        (r"(\d+) combinations refused", len(REFUSED)),
        (r"(\d+) drawn at random", CHANCES),
        (r"(\d+) \[planted faults\]", len(IN_BUILT_INS) + len(IN_CRDS) + len(PLANTED)),
        (r"(\d+) in the Dockerfile", len(IN_THE_DOCKERFILE)),
        (r"(\d+) alerts: each fires", len(alerts())),
        (r"quiet on others \((\d+) cases\)", len(CASES)),
        (r"(\d+) planted faults are found", len(IN_THE_RULES) + 1),  # and a query that is none
    ],
)
def test_the_page_says_how_many_there_are(said: str, there_are: int) -> None:
    assert {int(each) for each in re.findall(said, CHECKED)} == {there_are}
