"""For each alert, series on which it must fire, and such on which it must not.

Values are written as `promtool test rules` has them: `0+60x90` begins at 0 and grows by 60 a
minute, 90 times; `1x4` is five times 1. `at`: the minute at which is looked.
"""

from __future__ import annotations

from dataclasses import dataclass, field

Labels = dict[str, str]
DEVICE: Labels = {"namespace": "serving", "model": "device"}
CHAT: Labels = {**DEVICE, "tenant": "chat"}
TARGETS: Labels = {"namespace": "serving", "job": "serving/headrace-gateways"}
KEY: Labels = {"namespace": "serving", "tenant": "chat", "key": "laptop"}
DAY_S = 86_400
GPU: Labels = {"Hostname": "node-1", "gpu": "0"}


@dataclass(frozen=True, slots=True)
class AlertCase:
    """`fires`: labels beside the severity; None, not at all. `says`: its summary then."""

    alert: str
    why: str
    at: int
    series: dict[str, str]
    fires: Labels | None = None
    says: str = ""
    also_quiet: tuple[str, ...] = field(default=())


def of(name: str, labels: Labels, **more: str) -> str:
    pairs = ",".join(f'{key}="{value}"' for key, value in {**labels, **more}.items())
    return f"headrace_{name}{{{pairs}}}"


def answered(share: float, minutes: int, rate: int = 60) -> dict[str, str]:
    """`rate` requests a minute, this share of them within their promise."""
    return {
        of("requests_total", CHAT, outcome="ok", reason="", gateway="a"): f"0+{rate}x{minutes}",
        of("slo_kept_total", CHAT, gateway="a"): f"0+{rate * share:g}x{minutes}",
    }


def latencies(*cumulative: int) -> dict[str, str]:
    """Requests a minute up to 60, 100, 600 and 1000 ms, and all."""
    edges = ("0.06", "0.1", "0.6", "1.0", "+Inf")
    return {
        of("request_seconds_bucket", CHAT, le=edge): f"0+{count}x60"
        for edge, count in zip(edges, cumulative, strict=True)
    }


def batches(total_s: float, squares: float, count: int = 10) -> dict[str, str]:
    """A minute."""
    bucket = {**DEVICE, "bucket": "512"}
    return {
        of("service_seconds_sum", bucket): f"0+{total_s}x120",
        of("service_seconds_count", bucket): f"0+{count}x120",
        of("service_squared_seconds_total", bucket): f"0+{squares}x120",
    }


def padding(share: float) -> dict[str, str]:
    return {
        of("padding_ratio_sum", DEVICE): f"0+{100 * share:g}x60",
        of("padding_ratio_count", DEVICE): "0+100x60",
    }


def copies(level_s: str, hedges: str) -> dict[str, str]:
    return {
        **batches(1.0, 0.1),
        of("copy_budget_seconds", DEVICE, gateway="a"): level_s,
        of("copy_budget_seconds", DEVICE, gateway="b"): "0.9x120",
        of("hedges_total", DEVICE): hedges,
        of("ties_total", DEVICE): "0x120",
    }


def replica(name: str, values: str) -> dict[str, str]:
    return {of(name, {**DEVICE, "replica": "r#1"}, gateway=each): values for each in ("a", "b")}


def queue(values: str) -> dict[str, str]:
    """At each of two gateways."""
    return {of("queue_rows", DEVICE, gateway=each): values for each in ("a", "b")}


def late(values: str) -> dict[str, str]:
    """At each of two gateways."""
    return {of("queue_late_rows", DEVICE, gateway=each): values for each in ("a", "b")}


def told(*values: str) -> dict[str, str]:
    """Whether its model is ready, as each gateway tells it while it is there."""
    labels = {**TARGETS, "model": "device", "optional": "false"}
    return {
        of("model_ready", labels, gateway=str(number)): each for number, each in enumerate(values)
    }


def never_ready(values: str) -> dict[str, str]:
    return {of("requests_total", {**CHAT, "model": "other"}, outcome="not_ready"): values}


def cold_start(minutes: int) -> dict[str, str]:
    """Requests arrive from the first minute on, a thousand each, and are answered after these."""
    return {
        **never_ready(f"0+1000x{minutes} {1000 * minutes}x60"),
        **readiness(f"0x{minutes} 1x60"),
        of("requests_total", CHAT, outcome="ok"): f"_x{minutes} 0+1000x60",
        of("slo_kept_total", CHAT): f"_x{minutes} 0+1000x60",
    }


def ending(at_s: int, key: Labels = KEY, used: int | None = 0) -> dict[str, str]:
    """A key that two gateways know and one saw, in seconds after promtool's clock began."""
    uses = (
        {}
        if used is None
        else {of("key_last_used_timestamp_seconds", key, gateway="a"): f"{used}x6000"}
    )
    ends = {of("key_expires_timestamp_seconds", key, gateway=each): f"{at_s}x6000" for each in "ab"}
    return {**uses, **ends}


def late_uses(values: str) -> dict[str, str]:
    return {of("key_expired_requests_total", KEY, gateway="a"): values}


def age(gateway: str, values: str) -> dict[str, str]:
    return {of("tenants_age_seconds", {"namespace": "serving"}, gateway=gateway): values}


def ends(*values: str) -> dict[str, str]:
    """Of Serve's controller, as each gateway tells it."""
    return {
        of("serve_controller_ends_total", {"namespace": "serving"}, gateway=str(number)): each
        for number, each in enumerate(values)
    }


def readiness(*values: str, optional: str = "false") -> dict[str, str]:
    """As each gateway tells it."""
    return {
        of("model_ready", DEVICE, gateway=str(number), optional=optional): each
        for number, each in enumerate(values)
    }


def gpu_memory(used_mib: int, free_mib: int) -> dict[str, str]:
    return {
        'DCGM_FI_DEV_FB_USED{Hostname="node-1",gpu="0"}': f"{used_mib}x60",
        'DCGM_FI_DEV_FB_FREE{Hostname="node-1",gpu="0"}': f"{free_mib}x60",
    }


def gpus(*busy: float) -> dict[str, str]:
    name = 'DCGM_FI_PROF_GR_ENGINE_ACTIVE{{Hostname="node-1",gpu="{}"}}'.format
    return {name(number): f"{share}x60" for number, share in enumerate(busy)}


_GONE = "Prometheus gets no metrics from any gateway of serving/headrace-gateways any more."
_EJECTED = "Replica r#1 of device is ejected: it gets no work because it is slow."
_NOT_READY = "No gateway reaches a replica of device: its requests are refused."
_SILENT = "Replica r#1 of device has stopped sending messages and gets no work."
_FAST, _SLOW = "HeadraceSloBurnsFast", "HeadraceSloBurnsSlowly"

CASES = (
    AlertCase(
        _FAST, "a fifth is late", 70, answered(0.8, 90), CHAT,
        "20% of chat's requests to device miss their promise: a month's error budget lasts days.",
    ),
    AlertCase(
        _FAST, "none was ever in time", 70,
        {of("requests_total", CHAT, outcome="shed", reason="queue_full"): "0+60x90"}, CHAT,
        "100% of chat's requests to device miss their promise: a month's error budget lasts days.",
    ),
    AlertCase(
        _FAST, "a model that lost its replicas", 70,
        {
            of("requests_total", CHAT, outcome="ok"): "0+60x40 2400x50",
            of("slo_kept_total", CHAT): "0+60x40 2400x50",
            of("requests_total", CHAT, outcome="not_ready"): "0x40 0+60x50",
        },
        CHAT,
        "49.15% of chat's requests to device miss their promise: a month's error budget lasts "
        "days.",
    ),
    AlertCase(_FAST, "a model that was never ready", 70, never_ready("0+60x90")),
    AlertCase(_FAST, "a cold start", 7, cold_start(7), also_quiet=("HeadraceModelIsNotReady",)),
    AlertCase(_FAST, "after a cold start", 12, cold_start(7)),
    AlertCase(_FAST, "a twentieth is late", 70, answered(0.95, 90)),
    AlertCase(
        _FAST, "it has been well again for forty minutes", 110,
        {
            of("requests_total", CHAT, outcome="ok"): "0+60x130",
            of("slo_kept_total", CHAT): "0+48x70 3420+60x60",
        },
    ),
    AlertCase(_FAST, "hardly anybody calls", 70, answered(0.0, 90, rate=0)),
    AlertCase(
        _FAST, "callers send nonsense, or leave", 70,
        {
            **answered(1.0, 90),
            of("requests_total", CHAT, outcome="bad_request"): "0+600x90",
            of("requests_total", CHAT, outcome="over_limit"): "0+600x90",
            of("requests_total", CHAT, outcome="cancelled"): "0+600x90",
        },
    ),
    AlertCase(
        _SLOW, "a twenty-fifth is late for a day", 1560, answered(0.96, 1600), CHAT,
        "4% of chat's requests to device miss their promise: a month's error budget lasts weeks.",
        also_quiet=(_FAST,),
    ),
    AlertCase(_SLOW, "within the budget", 1560, answered(0.995, 1600)),
    AlertCase(
        "HeadraceIsGone", "every process ended", 40, told("1x20 stale"), TARGETS, _GONE
    ),
    AlertCase(
        "HeadraceIsGone", "they vanished two hours ago", 160, told("1x20 _x200"), TARGETS, _GONE
    ),
    AlertCase("HeadraceIsGone", "one of two gateways", 40, told("1x20 stale", "1x90")),
    AlertCase("HeadraceIsGone", "for the time of a restart", 26, told("1x20 stale _x2 0x40")),
    AlertCase("HeadraceIsGone", "it was taken away yesterday", 260, told("1x20 stale")),
    AlertCase("HeadraceIsGone", "it starts", 40, told("_x36 0x20")),
    AlertCase("HeadraceIsGone", "it was never there", 40, {}),
    AlertCase(
        "HeadraceQueueGrows", "a flood", 63, queue("10x59 150x20"), DEVICE,
        "300 rows wait for device, over three times the average of an hour before.",
    ),
    AlertCase(
        "HeadraceQueueGrows", "a flood that stays for an hour", 178, queue("10x119 150x90"), DEVICE,
        "300 rows wait for device, over three times the average of an hour before.",
    ),
    AlertCase(
        "HeadraceQueueGrows", "a minute by a minute more", 190, queue("0x60 0+5x200"), DEVICE,
        "1.29k rows wait for device, over three times the average of an hour before.",
    ),
    AlertCase(
        "HeadraceRowsAreLate", "a backlog that stays for hours", 600,
        {**queue("5000x700"), **late("512x700")}, DEVICE,
        "1.024k rows for device wait past their deadline.",
        also_quiet=("HeadraceQueueGrows",),
    ),
    AlertCase(
        "HeadraceRowsAreLate", "a backlog that grows as fast as ever", 600,
        {**queue("0+10x700"), **late("0+1x700")}, DEVICE,
        "1.2k rows for device wait past their deadline.",
        also_quiet=("HeadraceQueueGrows",),
    ),
    AlertCase("HeadraceRowsAreLate", "many wait, in time", 60, {**queue("500x90"), **late("0x90")}),
    AlertCase("HeadraceRowsAreLate", "a burst", 60, late("0x54 200x4 0x60")),
    AlertCase("HeadraceRowsAreLate", "a few", 60, late("3x90")),
    AlertCase("HeadraceQueueGrows", "always as many", 63, queue("150x90")),
    AlertCase("HeadraceQueueGrows", "few, if more than usual", 63, queue("1x59 4x20")),
    AlertCase("HeadraceQueueGrows", "for a moment", 63, queue("10x59 150 10x20")),
    AlertCase(
        "HeadraceTailIsLong", "a tenth takes ten times as long", 40,
        latencies(10, 90, 90, 100, 100), DEVICE,
        "The slowest twentieth of requests to device takes over 800ms, more than three times the "
        "median.",
    ),
    AlertCase("HeadraceTailIsLong", "all alike", 40, latencies(10, 100, 100, 100, 100)),
    AlertCase(
        "HeadraceBatchTimesVary", "100 ms or 300 ms", 40, batches(2.0, 0.5),
        {**DEVICE, "bucket": "512"},
        "Batch times of device up to 512 tokens deviate by 50% of their mean.",
    ),
    AlertCase("HeadraceBatchTimesVary", "190 ms or 210 ms", 40, batches(2.0, 0.401)),
    AlertCase("HeadraceBatchTimesVary", "two batches a minute", 40, batches(0.4, 0.1, 2)),
    AlertCase(
        "HeadracePaddingIsHigh", "more than a third", 40, padding(0.35), DEVICE,
        "35% of what device computes is padding.",
    ),
    AlertCase("HeadracePaddingIsHigh", "a tenth", 40, padding(0.1)),
    AlertCase(
        "HeadraceAccountingDrifts", "one batch too few", 20,
        {of("accounting_drift", DEVICE, gateway="a"): "0x9 -1x20"}, DEVICE,
        "A gateway's count of batches of device differs by 1 from the batches that exist.",
    ),
    AlertCase(
        "HeadraceAccountingDrifts", "a replica's own", 20,
        {
            of("accounting_drift", DEVICE, gateway="a"): "0x30",
            of("replica_accounting_drift", DEVICE, replica="r#1"): "2x30",
        },
        DEVICE,
        "A gateway's count of batches of device differs by 2 from the batches that exist.",
    ),
    AlertCase(
        "HeadraceAccountingDrifts", "between two looks", 20,
        {of("accounting_drift", DEVICE, gateway="a"): "0x18 1 0x20"},
    ),
    AlertCase(
        "HeadraceColdStarts", "asleep, awake, every ten minutes", 90,
        {of("asleep", DEVICE): " ".join(["1x9 0x9"] * 6)}, DEVICE,
        "device fell asleep or woke 6 times in an hour.",
    ),
    AlertCase(
        "HeadraceColdStarts", "it woke once and went to sleep", 90,
        {of("asleep", DEVICE): "1x40 0x20 1x60"},
    ),
    AlertCase(
        "HeadraceModelIsNotReady", "it lost its replicas", 20, readiness("1x5 0x40", "1x5 0x40"),
        {**DEVICE, "optional": "false"}, _NOT_READY,
    ),
    AlertCase(
        "HeadraceModelIsNotReady", "an optional one never came", 20,
        readiness("0x40", "0x40", optional="true"), {**DEVICE, "optional": "true"}, _NOT_READY,
    ),
    AlertCase("HeadraceModelIsNotReady", "while it started", 20, readiness("0x8 1x40", "0x8 1x40")),
    AlertCase(
        "HeadraceModelIsNotReady", "only to a gateway that starts", 20, readiness("1x40", "0x40")
    ),
    AlertCase(
        "HeadraceCopyBudgetIsSpent", "less than a batch takes", 80, copies("0.01x120", "0+1x120"),
        DEVICE,
        "device has 10ms of device time left for copies of batches, less than one batch takes.",
    ),
    AlertCase("HeadraceCopyBudgetIsSpent", "several", 80, copies("0.5x120", "0+1x120")),
    AlertCase(
        "HeadraceCopyBudgetIsSpent", "no copies are sent, retries were paid for", 80,
        copies("-0.3x120", "0x120"),
    ),
    AlertCase(
        "HeadraceReplicaIsEjected", "for long", 20, replica("replica_ejected", "0x9 1x20"),
        {**DEVICE, "replica": "r#1"}, _EJECTED,
    ),
    AlertCase(
        "HeadraceReplicaIsEjected", "a minute", 20, replica("replica_ejected", "0x18 1 0x20")
    ),
    AlertCase(
        "HeadraceReplicaIsSilent", "for long", 20, replica("replica_suspended", "0x9 1x20"),
        {**DEVICE, "replica": "r#1"}, _SILENT,
    ),
    AlertCase("HeadraceReplicaIsSilent", "never", 20, replica("replica_suspended", "0x40")),
    AlertCase(
        "HeadraceKeyExpiresSoon", "in ten days", 20, ending(10 * DAY_S), KEY,
        "Key laptop (in use) of tenant chat expires in 9d 23h 40m 0s.",
    ),
    AlertCase(
        "HeadraceKeyExpiresSoon", "an operator's", 20, ending(10 * DAY_S, {**KEY, "tenant": ""}),
        {"namespace": "serving", "key": "laptop"},
        "Key laptop (in use) of an operator expires in 9d 23h 40m 0s.",
    ),
    AlertCase("HeadraceKeyExpiresSoon", "in fifteen days", 20, ending(15 * DAY_S)),
    AlertCase("HeadraceKeyExpiresSoon", "it has", 20, ending(60)),
    AlertCase("HeadraceKeyExpiresSoon", "nobody uses it", 20, ending(10 * DAY_S, used=None)),
    AlertCase(
        "HeadraceKeyExpiresSoon", "nobody has for days", 20 + 4 * 24 * 60, ending(10 * DAY_S)
    ),
    AlertCase(
        "HeadraceExpiredKeyIsUsed", "once a minute", 60, late_uses("0x20 0+1x60"), KEY,
        "Key laptop has expired, and about 39 requests that brought it were refused in an hour.",
    ),
    AlertCase("HeadraceExpiredKeyIsUsed", "never", 60, late_uses("0x90")),
    AlertCase("HeadraceExpiredKeyIsUsed", "two hours ago", 150, late_uses("0x10 0+1x10 10x150")),
    AlertCase(
        "HeadraceTenantsAreOld", "at one of two gateways", 10,
        {**age("a", "0.5x20"), **age("b", "0+60x20")}, {"namespace": "serving", "gateway": "b"},
        "Gateway b could not read tenants and keys for 10m 0s: keys revoked since then still "
        "work there.",
    ),
    AlertCase("HeadraceTenantsAreOld", "for a moment", 10, age("a", "0.5x8 45 0.5x10")),
    AlertCase(
        "HeadraceControllerHangs", "twice, as both gateways say", 70,
        ends("0x20 1x10 2x60", "0x20 1x10 2x60"), {"namespace": "serving"},
        "Serve's controller was ended 2 times in an hour, because it hung.",
    ),
    AlertCase(
        "HeadraceControllerHangs", "the registry began anew between", 70,
        ends("0x20 1x10 0x5 1x60"), {"namespace": "serving"},
        "Serve's controller was ended 2 times in an hour, because it hung.",
    ),
    AlertCase("HeadraceControllerHangs", "once", 70, ends("0x20 1x90", "0x20 1x90")),
    AlertCase(
        "HeadraceControllerHangs", "a gateway hears of what was", 70, ends("_x20 5x90", "5x120")
    ),
    AlertCase(
        "HeadraceGpuMemoryIsFull", "nearly all", 30, gpu_memory(79_000, 1_000), GPU,
        "98.75% of GPU 0's memory on node-1 is in use.",
    ),
    AlertCase("HeadraceGpuMemoryIsFull", "nine tenths", 30, gpu_memory(72_000, 8_000)),
    AlertCase(
        "HeadraceGpusIdleWhileRowsWait", "they do not run", 30,
        {**gpus(0.02, 0.08), **queue("50x60")}, {},
        "GPUs are busy 5% of the time while rows wait.",
    ),
    AlertCase(
        "HeadraceGpusIdleWhileRowsWait", "nothing waits", 30,
        {**gpus(0.02, 0.08), **queue("0x60")},
    ),
    AlertCase(
        "HeadraceGpusIdleWhileRowsWait", "they run", 30, {**gpus(0.9, 0.8), **queue("50x60")}
    ),
)  # fmt: skip
