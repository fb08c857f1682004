"""Asks a process of Ray whether it still works, by the health check of gRPC.

GCS and raylet both answer it, with and without Ray's token. Nothing here imports Ray.
Source: the protocol `grpc.health.v1`, whose empty message asks for the whole server.
"""

from __future__ import annotations

import grpc

_METHOD = "/grpc.health.v1.Health/Check"
_SILENT = (grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.UNAVAILABLE)


def answers(address: str, limit_s: float) -> bool:
    """Whether the process at `address` ("host:port") answers within `limit_s`, whatever it says."""
    with grpc.insecure_channel(address) as channel:
        check = channel.unary_unary(_METHOD, request_serializer=bytes, response_deserializer=bytes)
        try:
            check(b"", timeout=limit_s)
        except grpc.RpcError as error:
            return error.code() not in _SILENT
        return True
