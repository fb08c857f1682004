"""Which settings are gone, and what holds in their place?

By section: the names that older files may have there, each with the value that is now fixed, its
reason, and what to set instead. A file that has one is refused with these words.
docs/decisions/0057-fewer-settings.md lists them all.
"""

from __future__ import annotations

from collections.abc import Mapping

_SHARED = "retries and copies share it; hedge.mode off sends no copies"
_LEARNT = "the time follows what was measured"
_IN_FILE = "a field of the policy alone: scaling.policy names a file of such fields, or has them"
_POLICY = {
    "instant": "replicas are always added at once for a spike",
    "windows_s": "fixed at 1, 2, 4, … 64",
    "pending_limit_s": "fixed at 60",
}
_OF_POLICY_FILES = (
    "forecast", "season_s", "quantile", "spike_sigmas", "hold_s", "down_window_s", "down_step",
)  # fmt: skip

GONE: Mapping[str, Mapping[str, str]] = {
    "lengths": {
        "adapt": "edges follow the lengths of the last 10 minutes; list them in buckets to fix "
        "them",
        "switch_ms": "fixed at 0",
    },
    "batch": {
        "max_passed_over_ms": "length intervals take turns by their cost, so no bound is needed",
        "fixed_size": "max_size and max_slo_share bound a batch; with a share of 1 it may take the "
        "whole SLO",
    },
    "queue": {
        "max_late_rows": "fixed at 1024, or max_rows if that is less",
        "max_work_s": "max_rows bounds the queue; unset, it follows the model's timeout",
        "ageing_ms": "fixed at 1000",
    },
    "generation": {
        "input_weight": "fixed at 1, as in the paper on virtual token counters",
        "output_weight": "fixed at 2, as in the paper on virtual token counters",
        "predict": "learnt from the model's own answers",
    },
    "prompts": {"long_tokens": "fixed at 2048"},
    "affinity": {"max_blocks": "fixed at 262144"},
    "record": {"max_bytes": "fixed at 67108864; max_rows bounds what is recorded"},
    "hedge": {
        "quantile": "fixed at 0.95: about one copy for 20 first tries",
        "multiple": "fixed at 2",
        "delay_ms": _LEARNT,
        "budget": f"fixed at 0.05 of the device time of first tries; {_SHARED}",
        "max_utilisation": "fixed at 0.8; hedge.mode off sends no copies",
        "min_samples": "fixed at 30",
    },
    "outliers": {
        "eject_ratio": "fixed at 2; outliers.mode off ejects none",
        "max_ejected": "fixed at 0.5; outliers.mode off ejects none",
        "probe_s": "fixed at 1",
        "max_probe_s": "fixed at 30",
    },
    "silence": {
        "quantile": "fixed at 0.99; silence.mode off suspends none",
        "min_ms": "fixed at 250, and 2500 for a model that generates",
        "max_ms": "fixed at 10000, or twice the batch's predicted time if that is longer",
        "after_ms": f"{_LEARNT}; silence.mode off suspends none",
    },
    "crashes": {"refuse_s": "fixed at 600"},
    "policy": _POLICY,
    "scaling": {**dict.fromkeys(_OF_POLICY_FILES, _IN_FILE), **_POLICY},
    "rollout": {"max_cost_ratio": "max_latency_ratio bounds the cost of batches too"},
    "agreement": {"min_percent": "fixed at 99"},
    "pool": {
        "auto": "the number is chosen between min and max; equal bounds fix it",
        "residency_s": "fixed at 10",
        "residency_loads": "fixed at 10",
    },
    "limits": {
        "max_inflated_bytes": "fixed at 4 times max_body_bytes",
        "max_arriving_bodies": "fixed at half of max_requests",
        "min_bytes_per_s": "fixed at 500, from 5 s on; body_timeout_s bounds the whole body",
        "slow_grace_s": "fixed at 5",
        "pool_threshold_bytes": "fixed at 65536",
    },
    "preprocess": {"cache_bytes": "fixed at 67108864", "max_pending": "fixed at 1024"},
}
