"""Which questions does an order policy answer, and in what terms?

An order policy decides whose turn it is among flows. It computes with numbers alone and changes
nothing: `Flows` keeps the accounts and applies the answers. `policies/registry.py` names the
orders; a model's settings choose one (`PolicyNames.order`).
"""

from __future__ import annotations

from abc import abstractmethod
from enum import Enum
from typing import Final


class Ranking(Enum):
    """By what are flows, and the rows of a flow, put in order?"""

    SHARES = "shares"  # flows by the start tags of their accounts; rows by deadline
    DEADLINES = "deadlines"  # rows by deadline, whichever flow they belong to
    ARRIVALS = "arrivals"  # rows by arrival, whichever flow they belong to


# Python 3.11 finds a member in its class by a function in Python (190 ns), and each request asks
# for several.
SHARES: Final = Ranking.SHARES
DEADLINES: Final = Ranking.DEADLINES
ARRIVALS: Final = Ranking.ARRIVALS


Account = tuple[float, float]
"""(start tag, credit): of the flow's account; the credit, in seconds, is used up before the tag
grows."""


class Order:
    """Whose turn is it among flows? A class and no protocol, whose methods cost more compiled.

    Accounts are kept under every order, since they also say how much each flow was given. A tag is
    in predicted device seconds divided by the flow's weight, unless the order defines it otherwise.
    `ranking`: by what flows and rows are put in order. `settles`: whether a charge is corrected
    from predicted to measured seconds when its batch ends.
    """

    def __init__(self, ranking: Ranking = SHARES, *, settles: bool = True) -> None:
        self.ranking, self.settles = ranking, settles

    def price(self, length: int, cost_s: float) -> float:
        """What a row is charged when it leaves the queue: `length` tokens, `cost_s` predicted
        seconds."""
        return cost_s

    @abstractmethod
    def tag(self, account: Account, weight: float) -> float:
        """The tag less the credit: with it, other gateways' flows and new flows are compared."""

    @abstractmethod
    def charged(self, account: Account, weight: float, seconds: float) -> Account:
        """The account after a charge of `seconds`; negative: after giving them back."""

    @abstractmethod
    def refunded(self, account: Account, weight: float, seconds: float) -> Account:
        """The account after `seconds` were refunded, whose work was never started."""

    @abstractmethod
    def entered(self, account: Account, weight: float, virtual: float) -> Account:
        """The account of a flow that was idle and has work again. `virtual`: its priority's virtual
        time, the tag at which new flows start."""

    @abstractmethod
    def next_virtual(self, virtual: float, moves: float, start: float, share_s: float) -> float:
        """The virtual time after a flow with the tag `start` has led a batch of `share_s` seconds
        divided by its weight. `moves`: the most by which the batch before moves it."""

    @abstractmethod
    def is_far_ahead(self, start: float, than: float, seconds: float) -> bool:
        """Whether the tag `start` is above the tag `than` by more than `seconds` of share."""
