"""The messages of the gRPC services that this server answers, as Python classes.

`protos/services.binpb` holds the descriptors of `protos/*.proto`, as protoc writes them:
`protoc -I protos --descriptor_set_out=protos/services.binpb protos/*.proto`. They have a pool of
their own: a client's library in the same process may have loaded other files of the same messages,
and protobuf refuses to load both into one pool.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

INFERENCE = "inference.GRPCInferenceService"
HEALTH = "grpc.health.v1.Health"
REFLECTION = tuple(f"grpc.reflection.{each}.ServerReflection" for each in ("v1", "v1alpha"))
SERVICES = (INFERENCE, HEALTH, *REFLECTION)
POOL = descriptor_pool.DescriptorPool()


def _load() -> None:
    described = Path(__file__).with_name("protos") / "services.binpb"
    for file in descriptor_pb2.FileDescriptorSet.FromString(described.read_bytes()).file:
        POOL.Add(file)


_load()


def message(name: str) -> Any:
    """The class of a message, by its full name. Raises KeyError."""
    return message_factory.GetMessageClass(POOL.FindMessageTypeByName(name))


ModelInferRequest = message("inference.ModelInferRequest")
ModelInferResponse = message("inference.ModelInferResponse")
ModelStreamInferResponse = message("inference.ModelStreamInferResponse")
