"""What policies are asked that decide by numbers alone.

A policy decides and changes nothing: it is given what it needs to know and says what should be, and
the core carries that out. Each is one of several that answer the same question, chosen by name in
the settings (`PolicyNames`).
"""

from __future__ import annotations

from enum import Enum
from typing import Protocol


class Ranking(Enum):
    """By what flows are told apart. SHARES: by the start tags of their accounts, and within a flow
    earliest deadline first; DEADLINES, ARRIVALS: by the first row that waits, whoever's it is."""

    SHARES = "shares"
    DEADLINES = "deadlines"
    ARRIVALS = "arrivals"


Account = tuple[float, float]
"""An account's start tag, and the credit in seconds that it uses up before the tag grows."""


class Order(Protocol):
    """Whose turn is it among flows? Accounts are kept under every order: they say who had how much.
    Tags are predicted device seconds over the flow's weight, unless the order says otherwise."""

    @property
    def ranking(self) -> Ranking: ...

    @property
    def settles(self) -> bool:
        """Whether accounts are put right by the seconds that a batch was predicted, and measured,
        to take."""
        ...

    def price(self, length: int, cost_s: float) -> float:
        """What a row of so many tokens and predicted seconds is charged when it is taken."""
        ...

    def tag(self, account: Account, weight: float) -> float:
        """What other gateways, and who comes, are compared with: the tag less the credit."""
        ...

    def charged(self, account: Account, weight: float, seconds: float) -> Account:
        """The account after it has taken so much more, or less if negative."""
        ...

    def refunded(self, account: Account, weight: float, seconds: float) -> Account:
        """The account once work that it was charged for was not even begun."""
        ...

    def entered(self, account: Account, weight: float, virtual: float) -> Account:
        """The account of a flow that was idle and asks again; `virtual`: where who comes begins."""
        ...

    def next_virtual(self, virtual: float, moves: float, start: float, share_s: float) -> float:
        """Where who comes begins, once a flow of the tag `start` leads a batch that takes `share_s`
        of its share; `moves`: how far the batch before moves it at most."""
        ...

    def is_far_ahead(self, start: float, than: float, seconds: float) -> bool:
        """Whether one tag is above another by more than so much work of its share."""
        ...
