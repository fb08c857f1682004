"""What that was sent gives its place to what is more urgent?

Two sorts of work may be taken back for an on-time row that waits. On a batch replica: a batch that
is staged there unstarted. One lease more than fits is sent, and the replica, whose rule is to
return its least urgent staged batch, returns it. No work is lost and no message is added. On a
stream replica, where settings allow it: a lease of whose answer no token has come, and nothing has
been given to its caller, whose rows are all retryable and were not stopped before.

A policy is told nothing else, so that none can lose work. It says what gives way, if anything
does; the core sends, recalls and counts. A batch that leads because its priority had been passed
over too long is never taken back, and no batch is while such a one is due.
"""

from __future__ import annotations

from abc import abstractmethod
from math import inf


class BegunStreams:
    """The streams that run, of which some may be stopped."""

    @abstractmethod
    def priorities(self) -> list[int]:
        """The priorities that have an open lease."""

    @abstractmethod
    def last_sent_at(self, priority: int) -> float:
        """When the lease of this priority was sent that would be stopped: of those that may be, the
        one that began last; -inf where there is none among the latest few."""


class Preemption:
    """What gives way to a row of the priority `urgent` that waits on time?"""

    @abstractmethod
    def gives_back(self, late: int, priority: int, urgent: int) -> bool:
        """Whether the least urgent batch that a full replica would return does, which stands in the
        lane `late`, `priority`."""

    @abstractmethod
    def stops(self, begun: BegunStreams, urgent: int) -> int | None:
        """The priority of which a stream is stopped, so that its row waits again: of those that may
        be, the one that began last. None: none is."""


class LeastUrgent(Preemption):
    """The least urgent work that may, where it is less urgent. Late batches are less urgent than
    any on time. Of streams of the least urgent priority that runs, the one that began last gives
    way: it loses least. Optimises the wait of the most urgent rows. vLLM stops sequences in the
    same order."""

    def gives_back(self, late: int, priority: int, urgent: int) -> bool:
        return late > 0 or priority > urgent

    def stops(self, begun: BegunStreams, urgent: int) -> int | None:
        least = max(begun.priorities(), default=0)
        return least if least > urgent else None


class LeastWorkLost(LeastUrgent):
    """Of all less urgent streams the one that was sent last. Optimises device seconds: what the
    engine has done for a stream that has no token yet, at most the seconds since it was sent, is
    done twice. Staged batches lose nothing: of those the least urgent gives way."""

    def stops(self, begun: BegunStreams, urgent: int) -> int | None:
        found, latest = None, -inf
        for priority in sorted(begun.priorities(), reverse=True):
            sent_at = begun.last_sent_at(priority) if priority > urgent else -inf
            if sent_at > latest:
                found, latest = priority, sent_at
        return found


class Never(Preemption):
    """Nothing that was sent: priorities hold in the queue alone."""

    def gives_back(self, late: int, priority: int, urgent: int) -> bool:
        return False

    def stops(self, begun: BegunStreams, urgent: int) -> int | None:
        return None
