"""A stand whose replica is at the end of a real channel answers as any other, and keeps nothing."""

from __future__ import annotations

from pathlib import Path

from in_process import ask
from replica_apart import FarReplica, StandApart, replica_of

MODEL = {"runtime": "synthetic", "options": {"base_ms": 0}}
BODY = b'{"inputs": [{"name": "ids", "datatype": "INT64", "shape": [1, 2], "data": [4, 5]}]}'


async def test_a_row_is_answered_by_a_replica_behind_the_channel(tmp_path: Path) -> None:
    async with replica_of("device", MODEL, tmp_path) as replica:
        stand = StandApart("device", MODEL, tmp_path, FarReplica.read(str(replica)))
        await stand.reached("device")
        answer = await ask(stand.app, "POST", "/v2/models/device/infer", body=BODY)
        assert (answer.status, b'"data":[9.0]' in answer.body) == (200, True)
        counts = stand.channels["device"].counts
        # Two of the handshake came too.
        assert (counts.sent_frames, counts.received_frames) == (1, 3)
        stand.close()
