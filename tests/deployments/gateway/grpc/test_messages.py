"""The descriptors that are loaded are those of the `.proto` files."""

from __future__ import annotations

from pathlib import Path

from google.protobuf.descriptor_pb2 import FileDescriptorSet
from grpc_tools import protoc

from deployments.gateway.grpc import messages

PROTOS = Path(messages.__file__).with_name("protos")


def test_the_descriptors_are_those_of_the_files(tmp_path: Path) -> None:
    made = tmp_path / "services.binpb"
    files = sorted(str(path) for path in PROTOS.glob("*.proto"))
    assert protoc.main(["", f"-I{PROTOS}", f"--descriptor_set_out={made}", *files]) == 0
    assert FileDescriptorSet.FromString(made.read_bytes()) == FileDescriptorSet.FromString(
        (PROTOS / "services.binpb").read_bytes()
    )
