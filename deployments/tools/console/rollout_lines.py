"""A rollout as one line: its step, what both versions answered, and why it waits or ended."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from deployments.contract.rollout.account import RolloutAccount, VersionAccount

_NAME, _PHASE = 12, 9


def rollout_line(account: RolloutAccount) -> str:
    """The line; its first columns have fixed widths, so that lines align."""
    parts = [f"{account['model']:<{_NAME}} {account['phase']:<{_PHASE}} {_step(account)}"]
    parts.append(f"new {_counts(account['canary'])}, live {_counts(account['live'])}")
    if account["copies"]["answered"] or account["copies"]["failed"]:
        parts.append(f"copies {_counts(account['copies'])}")
    if account["compared"]:
        parts.append(f"{account['agreed']} of {account['compared']} rows agree")
    if account["why"]:
        parts.append(account["why"])
    return "  ".join(parts)


def progress_key(account: RolloutAccount) -> tuple[str, int]:
    """A key that changes whenever a new line is worth printing."""
    return account["phase"], account["step"]


def _step(account: RolloutAccount) -> str:
    held = f"{min(account['held_s'], account['hold_s']):.0f} of {account['hold_s']:g} s"
    if account["phase"] != "step":
        held = ""
    return f"step {account['step']}/{account['steps']} {account['share']:>4.0%} {held:<12}"


def _counts(version: VersionAccount) -> str:
    median = version["median_ms"]
    told = f", p50 {median:.3g} ms" if median is not None else ""
    return f"{version['answered']} answered, {version['failed']} failed{told}"
