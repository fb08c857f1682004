"""An application of Serve's that is not ours: what a gateway's server does, without a gateway."""

from __future__ import annotations

from typing import Any

from ray import serve


class Plain:
    async def __call__(self, request: Any) -> dict[str, int]:
        context = serve.get_replica_context()
        assert context.rank is not None
        return {"rank": context.rank.rank, "local_rank": context.rank.local_rank}


def app(args: dict[str, Any]) -> Any:
    made: Any = serve.deployment(Plain, name="plain", ray_actor_options={"num_cpus": 0})
    return made.bind()
