"""Off, observe and enforce, in the words of every shedding policy."""

from routers.api.settings import Mode
from routers.policies.admission.types import Verdicts


def test_enforced_no_holds_and_is_counted():
    verdicts = Verdicts(Mode.ENFORCE)
    assert verdicts.no()
    assert (verdicts.shed, verdicts.would_shed) == (1, 0)


def test_observed_no_is_counted_and_does_not_hold():
    verdicts = Verdicts(Mode.OBSERVE)
    assert not verdicts.no()
    assert (verdicts.shed, verdicts.would_shed) == (0, 1)


def test_only_off_is_off():
    assert [Verdicts(mode).off for mode in Mode] == [mode is Mode.OFF for mode in Mode]
