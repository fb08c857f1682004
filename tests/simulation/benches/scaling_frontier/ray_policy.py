"""Ray Serve's own autoscaling policy, its real code, on virtual time.

`replica_queue_length_autoscaling_policy` inside the wrapper that Serve's controller puts around it
(factors, delays), with an `AutoscalingConfig` and a context made as the controller makes them; only
the clock that the wrapper reads is replaced. What it is given: queued and running requests, as a
deployment handle reports them: sampled, pushed each `metrics_interval_s` and averaged over
`look_back_period_s`. It is asked each second, the controller would each 0.1 s.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from ray.serve import autoscaling_policy
from ray.serve._private.common import DeploymentID
from ray.serve.config import AutoscalingConfig, AutoscalingContext

from tests.simulation.benches.scaling_frontier.world import MOST, Observation

MODEL = DeploymentID(name="Model", app_name="model")
DECIDE = autoscaling_policy._apply_autoscaling_config(
    autoscaling_policy.replica_queue_length_autoscaling_policy
)


@dataclass(slots=True)
class _Clock:
    """Stands for the module `time` in Serve's policy."""

    now: float = 0.0

    def time(self) -> float:
        return self.now


class RayServe:
    """`settings`: of `AutoscalingConfig`, over its defaults."""

    def __init__(self, target: float, push_s: float = 10.0, **settings: float) -> None:
        self._config = AutoscalingConfig(
            min_replicas=1, max_replicas=MOST, target_ongoing_requests=target, **settings
        )
        self._push_s = push_s
        self._samples: deque[int] = deque(maxlen=max(1, int(self._config.look_back_period_s)))
        self._reported = 0.0
        self._state: dict[str, object] = {}
        self._clock = _Clock()

    def wants(self, seen: Observation, now: float) -> int:
        self._samples.append(seen.running + seen.queued)
        if now % self._push_s == 0:
            self._reported = sum(self._samples) / len(self._samples)
        self._clock.now = now
        real, autoscaling_policy.time = autoscaling_policy.time, self._clock
        try:
            wanted, self._state = DECIDE(self._context(seen, now))
        finally:
            autoscaling_policy.time = real
        return min(self._config.max_replicas, max(self._config.min_replicas, int(wanted)))

    def _context(self, seen: Observation, now: float) -> AutoscalingContext:
        return AutoscalingContext(
            deployment_id=MODEL, deployment_name=MODEL.name, app_name=MODEL.app_name,
            current_num_replicas=seen.hot, target_num_replicas=seen.target, running_replicas=[],
            total_num_requests=self._reported, total_queued_requests=float(seen.queued),
            aggregated_metrics=None, raw_metrics=None, capacity_adjusted_min_replicas=1,
            capacity_adjusted_max_replicas=MOST, policy_state=self._state,
            last_scale_up_time=None, last_scale_down_time=None, current_time=now,
            config=self._config,
        )  # fmt: skip


def default(target: float = 2.0) -> RayServe:
    return RayServe(target)


def tuned(target: float, down_s: float = 300.0) -> RayServe:
    """Reports each second, looks back 3 s, up at once, down after `down_s`."""
    return RayServe(
        target, push_s=1.0, look_back_period_s=3.0, upscale_delay_s=0.0, downscale_delay_s=down_s
    )
