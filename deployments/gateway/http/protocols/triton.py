"""Triton's extensions of the Open Inference Protocol: a model's configuration and its statistics.

Clients written for Triton (tritonclient, perf_analyzer) read them. Only what is true here is
given: fields of a configuration file that mean nothing to this server are left out, which in
Triton's form means their defaults. A shape in a configuration lacks the batch axis.
Source: Triton, "Model Configuration Extension" and "Statistics Extension".
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any

import msgspec

from deployments.contract.description import ModelDescription
from deployments.gateway.http.protocols.tensors import Encoded
from runtimes.types import TensorSpec


class ConfigTensor(msgspec.Struct, omit_defaults=True):
    """`dims`: -1 for an axis of any length; without the batch axis."""

    name: str
    data_type: str
    dims: tuple[int, ...]
    optional: bool = False


class ConfigParameter(msgspec.Struct):
    string_value: str


class InstanceGroup(msgspec.Struct):
    name: str
    kind: str


class TransactionPolicy(msgspec.Struct):
    """`decoupled`: answers may come in parts, which here is so where a model generates."""

    decoupled: bool


class ModelConfig(msgspec.Struct):
    """`max_batch_size`: rows a batch. `dynamic_batching` is empty: nothing waits a set time."""

    name: str
    platform: str
    backend: str
    max_batch_size: int
    input: list[ConfigTensor]
    output: list[ConfigTensor]
    instance_group: list[InstanceGroup]
    dynamic_batching: dict[str, Any]
    model_transaction_policy: TransactionPolicy
    parameters: dict[str, ConfigParameter]


class StatisticDuration(msgspec.Struct):
    count: int
    ns: int


class InferenceTimes(msgspec.Struct):
    success: StatisticDuration
    fail: StatisticDuration
    queue: StatisticDuration
    compute_input: StatisticDuration
    compute_infer: StatisticDuration
    compute_output: StatisticDuration
    cache_hit: StatisticDuration
    cache_miss: StatisticDuration


class BatchTimes(msgspec.Struct):
    batch_size: int
    compute_input: StatisticDuration
    compute_infer: StatisticDuration
    compute_output: StatisticDuration


class ModelStatisticsEntry(msgspec.Struct):
    """Counts of the gateway that answers, since it began or the version went live.
    `version`: as a number. `last_inference`: milliseconds since the epoch, 0: none yet."""

    name: str
    version: str
    last_inference: int
    inference_count: int
    execution_count: int
    inference_stats: InferenceTimes
    batch_stats: list[BatchTimes]


class StatisticsResponse(msgspec.Struct):
    model_stats: list[ModelStatisticsEntry]


_Bytes = Annotated[int, msgspec.Meta(ge=0, le=2**62)]


class RegionRequest(msgspec.Struct):
    """`key`: a name in /dev/shm."""

    key: str
    byte_size: Annotated[int, msgspec.Meta(ge=1, le=2**62)]
    offset: _Bytes = 0


class RegisteredRegion(msgspec.Struct, frozen=True):
    """`offset`: where it begins in the file `key`."""

    name: str
    key: str
    offset: int
    byte_size: int


class Done(msgspec.Struct):
    """An answer that says nothing more."""


def model_config(d: ModelDescription) -> Encoded:
    """`GET /v2/models/{name}[/versions/{version}]/config`."""
    kind = "KIND_GPU" if d.device.lower().startswith(("cuda", "gpu")) else "KIND_CPU"
    config = ModelConfig(
        name=d.name,
        platform=d.platform,
        backend=d.platform.partition("_")[0],
        max_batch_size=d.scheduling.core.max_size,
        input=[_tensor(spec, spec.name in _optional(d)) for spec in d.inputs],
        output=[_tensor(spec) for spec in d.outputs],
        instance_group=[InstanceGroup(f"{d.name}_0", kind)],
        dynamic_batching={},
        model_transaction_policy=TransactionPolicy(d.generating is not None),
        parameters={
            "max_length": ConfigParameter(str(d.max_length)),
            "precision": ConfigParameter(d.precision),
            "task": ConfigParameter(d.task),
        },
    )
    return Encoded(msgspec.json.encode(config))


def _optional(d: ModelDescription) -> set[str]:
    return {*d.optional_inputs, *([d.mask_input] if d.mask_input else [])}


def _tensor(spec: TensorSpec, optional: bool = False) -> ConfigTensor:
    kind = "STRING" if spec.datatype == "BYTES" else spec.datatype
    return ConfigTensor(spec.name, f"TYPE_{kind}", tuple(spec.shape[1:]), optional)


def statistics(entries: Iterable[ModelStatisticsEntry]) -> Encoded:
    """`GET /v2/models/stats` and `/v2/models/{name}[/versions/{version}]/stats`."""
    return Encoded(msgspec.json.encode(StatisticsResponse(list(entries))))
