"""The work as an MLServer runtime, which `serve.py` makes MLServer's own server load.

MLServer's adaptive batching joins only tensors of the same shape, but rows of ids differ in length.
So a row is sent as one BYTES element (its ids as text); a batch has one element for each row.
"""

from __future__ import annotations

import json

import numpy as np
from mlserver import MLModel
from mlserver.codecs import NumpyCodec, StringCodec
from mlserver.types import InferenceRequest, InferenceResponse

from loadtests.peers import options as peer_options


class Model(MLModel):
    async def load(self) -> bool:
        self._work = self.settings.parameters.extra["work"]
        self._run = peer_options.work_of(self._work)
        return True

    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        texts = StringCodec.decode_input(payload.inputs[0])
        items = texts if self._work == peer_options.MINILM else [json.loads(text) for text in texts]
        answers = self._run(items)
        output = NumpyCodec.encode_output("answer", np.asarray(answers, np.float32))
        return InferenceResponse(model_name=self.name, outputs=[output])
