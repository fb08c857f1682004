"""The fake device as a model of Triton's Python backend.

The device is that of the other servers: 2 ms for a batch of at most 32 rows, one batch at a time
(one instance), the sum of each row as FP32. Triton's dynamic batcher forms the batches for
`execute`. Inputs are not concatenated, as Triton's documentation advises if the model does not need
it.
"""

import os
import time

import triton_python_backend_utils as pb_utils

BATCH_S = float(os.environ.get("DEVICE_BATCH_MS", "2")) / 1000.0


class TritonPythonModel:
    def execute(self, requests):
        rows = [pb_utils.get_input_tensor_by_name(r, "ids").as_numpy() for r in requests]
        time.sleep(BATCH_S)
        return [
            pb_utils.InferenceResponse(
                output_tensors=[
                    pb_utils.Tensor("sum", ids.sum(axis=1, keepdims=True).astype("float32"))
                ]
            )
            for ids in rows
        ]
