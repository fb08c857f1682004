"""What binds a model's speed: the part of a batch that would have to be faster.

At one kind of batch: the shares of its time that are launch and transfer, how near its arithmetic
comes to what the machine computes at most and its weights to what the machine copies at most, and
how tokenising compares with it. What is largest binds; where none of them comes near, the backend
itself does. Arithmetic counts padding, because the device does. Bytes are the weights alone, once a
batch: less than what is really moved.
"""

from __future__ import annotations

from dataclasses import dataclass

NEAR = 0.5  # of a peak, or of a batch's time: from here on it is what binds


@dataclass(frozen=True, slots=True)
class Facts:
    """Of one batch of `rows` x `width`: seconds in all, of them copying and what every batch takes
    whatever is in it; `operations` and `weight_bytes`, None unknown; the machine's peaks a second;
    one thread's seconds to tokenise a row (0: no texts), and how many threads do that."""

    rows: int
    width: int
    seconds: float
    copy_s: float
    launch_s: float
    operations: float | None
    weight_bytes: float | None
    peak_flops: float | None
    peak_bytes: float
    tokenise_s: float = 0.0
    threads: int = 1


@dataclass(frozen=True, slots=True)
class Binding:
    """`binds`: compute, memory bandwidth, preprocessing, transfer, launch or the backend. Shares
    by the same names, None unknown: of a peak, or of the batch's time; preprocessing's is the
    tokenising threads' time to the device's."""

    binds: str
    shares: dict[str, float | None]


def binding(facts: Facts) -> Binding:
    seconds = facts.seconds
    shares = {
        "compute": _of_peak(facts.operations, seconds, facts.peak_flops),
        "memory bandwidth": _of_peak(facts.weight_bytes, seconds, facts.peak_bytes),
        "preprocessing": facts.tokenise_s * facts.rows / facts.threads / seconds,
        "transfer": facts.copy_s / seconds,
        "launch": min(1.0, facts.launch_s / seconds),
    }
    name, share = max(shares.items(), key=lambda pair: pair[1] or 0.0)
    if (share or 0.0) < NEAR:
        name = "the backend" if facts.operations is not None else "the backend (parameters unknown)"
    return Binding(name, shares)


def _of_peak(amount: float | None, seconds: float, peak: float | None) -> float | None:
    return None if amount is None or not peak else amount / seconds / peak
