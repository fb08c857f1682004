"""The fake device, served by Triton through PyTriton, the wheel's own interface.

Server, dynamic batcher and device are the same as in `serve.py`. Here Triton's Python backend is
only a proxy: the device runs in this process, to which every batch is sent, as PyTriton's
documentation shows. The Python backend alone (`serve.py`) takes fewer steps. Runs in the peer's own
environment.
"""

from __future__ import annotations

import argparse
import time

import numpy as np
from pytriton.decorators import batch
from pytriton.model_config import DynamicBatcher, ModelConfig, Tensor
from pytriton.triton import Triton, TritonConfig


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--threads", type=int, default=8)
    parser.add_argument("--batch-ms", type=float, default=2.0)
    asked = parser.parse_args()

    @batch
    def device(ids: np.ndarray) -> dict[str, np.ndarray]:
        time.sleep(asked.batch_ms / 1000.0)
        return {"sum": ids.sum(axis=1, keepdims=True).astype(np.float32)}

    config = TritonConfig(
        http_address="127.0.0.1",
        http_port=asked.port,
        http_thread_count=asked.threads,
        allow_grpc=False,
        allow_metrics=False,
    )
    with Triton(config=config) as triton:
        triton.bind(
            model_name="device",
            infer_func=device,
            inputs=[Tensor(name="ids", dtype=np.int64, shape=(-1,))],
            outputs=[Tensor(name="sum", dtype=np.float32, shape=(1,))],
            config=ModelConfig(max_batch_size=32, batcher=DynamicBatcher()),
            strict=False,
        )
        triton.serve()


if __name__ == "__main__":
    main()
