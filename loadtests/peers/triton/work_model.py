"""The work as a model of Triton's Python backend, of which Triton loads one instance.

A batch is all rows of all requests that `execute` gets; here a request has one row.
"""

import os

import numpy as np
import triton_python_backend_utils as pb_utils

from loadtests.peers import options as peer_options


class TritonPythonModel:
    def initialize(self, args):
        self._work = os.environ["PEER_WORK"]
        self._run = peer_options.work_of(self._work)

    def execute(self, requests):
        answers = self._run([self._item(request) for request in requests])
        return [self._response(answer) for answer in answers]

    def _response(self, answer):
        values = np.array([answer], np.float32).reshape(1, -1)
        return pb_utils.InferenceResponse(output_tensors=[pb_utils.Tensor("answer", values)])

    def _item(self, request):
        if self._work == peer_options.DEVICE:
            return pb_utils.get_input_tensor_by_name(request, "ids").as_numpy()[0].tolist()
        return pb_utils.get_input_tensor_by_name(request, "text").as_numpy()[0, 0].decode()
