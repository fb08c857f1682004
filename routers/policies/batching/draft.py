"""A batch while it is planned: its rows, what its flows are charged, and whose row would be next.

Planning changes nothing in the queue. In the plan each row is charged to its flow with its own
predicted cost, so that the order among flows follows. When the batch is whole, its predicted
seconds are divided among flows in the same proportions, and replace those charges (`formed`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from heapq import heappop, heappush, heapreplace
from math import inf
from typing import Final, Generic, TypeVar

from routers.api.policies import SHARES, Account, Order, Ranking
from routers.api.requests import FlowWork
from routers.api.settings import DispatcherSettings
from routers.estimates.groups import LengthRange
from routers.policies.batching.formed_batch import FormedBatch, ReplicaCapacity
from routers.policies.batching.view import QueueView
from routers.state.flows import Charge, Flow
from routers.state.lanes import Lane
from routers.state.rows import Row
from routers.state.tag_order import Tagged, TagOrder

# Tokens: mean lengths are rounded up to it, so that few target sizes are computed
_GRAIN: Final = 16


class Draft:
    """A planned batch for one replica."""

    __slots__ = (
        "_order",
        "_settings",
        "_shares",
        "accounts",
        "capacity",
        "edge",
        "lane",
        "longest",
        "max_start",
        "room",
        "rows",
        "total",
    )  # fmt: skip

    def __init__(
        self,
        order: Order,
        settings: DispatcherSettings,
        lane: Lane,
        edge: int,
        capacity: ReplicaCapacity,
        room: int,
    ) -> None:
        self._order = order
        self._settings = settings
        self._shares: dict[Flow, float] = {}
        self.lane = lane
        self.edge = edge  # of the bucket that leads
        self.capacity = capacity
        self.room = room  # rows that it may still take, by number and predicted seconds
        self.rows: list[Row] = []
        self.longest = 0  # tokens
        self.total = 0  # tokens of all rows
        self.max_start = inf  # flows with higher start tags were kept out; inf: none was
        self.accounts: dict[Flow, Account] = {}  # of the flows that it charges

    def width(self, longest: int, rows: int, total: int) -> int:
        """Tokens that the device sees each row as: the longest row, the edge where shapes are
        fixed, or the mean where batches are packed."""
        settings = self._settings
        if settings.buckets.fixed_shapes:
            return self.edge
        return longest if settings.pads else -(-total // rows)

    def holds(self, row: Row) -> bool:
        """Whether the batch keeps its bound in tokens with this row too; the first row always
        does."""
        if not self.rows:
            return True
        length, settings = row.length, self._settings
        if not settings.pads:
            return self.total + length <= settings.max_tokens
        width = length if length > self.longest else self.longest
        if settings.buckets.fixed_shapes:
            width = self.edge
        return (len(self.rows) + 1) * width <= settings.max_tokens

    def take(self, row: Row) -> None:
        """Add the row, and charge it to its flow in the plan."""
        length, cost_s, flow = row.length, row.cost_s, row.tracked.flow
        self.rows.append(row)
        if length > self.longest:
            self.longest = length
        self.total += length
        self.room -= 1
        account = self.accounts.get(flow) or (flow.start, flow.credit_s)
        price = cost_s if self._order.settles else self._order.price(length, cost_s)
        self.accounts[flow] = self._order.charged(account, flow.weight, price)
        shares = self._shares
        shares[flow] = shares.get(flow, 0.0) + cost_s

    def start(self, flow: Flow) -> float:
        """The flow's start tag once the planned rows are charged."""
        account = self.accounts.get(flow)
        return flow.start if account is None else account[0]

    def predicted_s(self, more: int = 0, tokens: int = 0, quantile: float = 0.5) -> float:
        """Predicted seconds with `more` further rows of `tokens` in all, none longer than the
        longest row."""
        rows = len(self.rows) + more
        width = self.width(self.longest, rows, self.total + tokens)
        return self.capacity.group.cost.predict(rows, width, self.capacity.replica_id, quantile)

    def formed(self, start: float, epoch: int) -> FormedBatch:
        """The batch as it stands. `start`: the start tag that the leading flow had; `epoch`: of the
        accounts. To be called once, at the end."""
        rows, group = self.rows, self.capacity.group
        width = self.width(self.longest, len(rows), self.total)
        predicted_s = group.cost.predict(len(rows), width, self.capacity.replica_id)
        if self.capacity.last_edge not in (0, self.edge):
            predicted_s += self._settings.buckets.switch_s
        lane = self.lane
        charges = self._settled_charges(predicted_s * group.speed)
        rank = (int(lane.late), lane.priority, start)
        paid = charges if self._order.settles else self._paid()
        charge = Charge(rank, predicted_s, charges, paid, epoch, group.speed)
        charge.of(list(self._shares))
        return FormedBatch(rows, width, self.edge, charge)

    def _settled_charges(self, work_s: float) -> tuple[FlowWork, ...]:
        """Each flow's share of the batch's work, charged in the plan instead of its rows' own
        predictions."""
        shares, charged, settles = self._shares, self._order.charged, self._order.settles
        whole = sum(shares.values())
        charges = []
        for flow, share in shares.items():
            seconds = work_s * (share / whole if whole > 0.0 else 1.0 / len(shares))
            if settles:
                self.accounts[flow] = charged(self.accounts[flow], flow.weight, seconds - share)
            charges.append((flow.priority, flow.tenant, seconds))
        return tuple(charges)

    def _paid(self) -> tuple[FlowWork, ...]:
        """What accounts are charged under an order that does not settle them."""
        prices: dict[Flow, float] = {}
        for row in self.rows:
            flow = row.tracked.flow
            price = self._order.price(row.length, row.cost_s)
            prices[flow] = prices.get(flow, 0.0) + price
        return tuple([(flow.priority, flow.tenant, price) for flow, price in prices.items()])


def new_draft(view: QueueView, lane: Lane, edge: int, capacity: ReplicaCapacity) -> Draft:
    """An empty draft; on a replica whose costs are not known yet it takes a single row."""
    room = capacity.group.sizes.max_rows(_width(view, lane, edge)) if capacity.trusted else 1
    return Draft(view.order, capacity.group.settings, lane, edge, capacity, room)


def _width(view: QueueView, lane: Lane, edge: int) -> int:
    """Tokens that a row of the bucket is reckoned with: the edge, or the bucket's mean where
    batches are packed."""
    if view.settings.pads:
        return edge
    length_class = lane.length_classes.get(edge)
    mean = (
        length_class.tokens // length_class.rows
        if length_class is not None and length_class.rows
        else edge
    )
    return min(edge, (mean // _GRAIN + 1) * _GRAIN)


T = TypeVar("T", bound=Tagged)


class Turns(Generic[T]):
    """Whose row is next in an order by tags, while a draft charges flows for the rows that it
    takes?

    Walks the order from its lowest tag on without changing it. Once an entry of the heap has been
    the lowest, its two children become candidates; items that the draft has charged stand among the
    candidates with their new tags. Work: O(log n) for each row that is asked for.
    """

    __slots__ = (
        "_accounts", "_by_rank", "_candidates", "_heads", "_item_of", "_lengths", "_marks", "_rows",
    )  # fmt: skip

    def __init__(
        self,
        order: TagOrder[T],
        draft: Draft,
        ranking: Ranking,
        item_of: Callable[[Row], T],
        lengths: LengthRange | None = None,
    ) -> None:
        """`lengths`: of the rows that are returned; None: all."""
        order.first()  # so that no outdated entry has a tag below the lowest true one
        self._item_of, self._lengths = item_of, lengths
        self._marks = order.heap
        self._accounts = draft.accounts
        self._by_rank = ranking is not SHARES
        self._rows: dict[T, Iterator[Row]] = {}
        self._heads: dict[T, Row | None] = {}
        self._candidates: list[tuple[float, int, int, T]] = []
        if order.heap:
            self._candidates.append((*order.heap[0][:2], 0, order.heap[0][2]))

    def first(self) -> Row | None:
        """The next row, the same again until `pass_by` is called; None: no more wait."""
        candidates, heads, accounts = self._candidates, self._heads, self._accounts
        while candidates:
            tag, pushed, index, item = candidates[0]
            if index >= 0:
                self._expand(tag, pushed, index, item)
                continue
            if item in heads:
                head = heads[item]
            elif self._lengths is None:
                head = item.head()
            else:
                head = next(item.in_order(self._lengths), None)
            if head is None:
                heappop(candidates)
                continue
            if self._by_rank:
                now = item.rank_of(head)
            else:
                account = accounts.get(item.flow)
                now = item.flow.start if account is None else account[0]
            if now == tag:
                return head
            heapreplace(candidates, (now, pushed, -1, item))
        return None

    def pass_by(self, row: Row) -> None:
        """The row that `first` has just returned was taken, or leaves the queue."""
        item = self._item_of(row)
        if item.rows == 1:
            self._heads[item] = None
            return
        rows = self._rows.get(item)
        if rows is None:
            rows = self._rows[item] = item.in_order(self._lengths)
            next(rows)
        self._heads[item] = next(rows, None)

    def firsts(self, most: int) -> list[T]:
        """At most `most` items that stand first, in order."""
        found: list[tuple[float, int, int, T]] = []
        while len(found) < most and self.first() is not None:
            found.append(heappop(self._candidates))
        for candidate in found:
            heappush(self._candidates, candidate)
        return [candidate[3] for candidate in found]

    def _expand(self, tag: float, pushed: int, index: int, item: T) -> None:
        """The lowest candidate is an entry of the heap at `index`: replace it by its item, with the
        tag of that entry, if the entry is valid. Its two children become candidates."""
        marks, candidates, mark = self._marks, self._candidates, item.mark
        if item.rows and mark is not None and mark[1] == pushed:
            heapreplace(candidates, (tag, pushed, -1, item))
        else:
            heappop(candidates)
        child, last = 2 * index + 1, len(marks)
        if child < last:
            tag, pushed, item = marks[child]
            heappush(candidates, (tag, pushed, child, item))
            child += 1
            if child < last:
                tag, pushed, item = marks[child]
                heappush(candidates, (tag, pushed, child, item))
