"""The work, served by LitServe and tuned by its documentation.

A `LitAPI` whose `predict` gets lists. One worker process owns the device; there is one API server
with `fast_queue` (its documentation's advice for many small requests). A batch waits up to 2 ms for
more items (with 0 the worker polls without a pause and uses a whole processor). Requests that have
waited longer than the SLO are refused (`timeout`), which is LitServe's only means against overload.
Source: LitServe documentation, "Batching", "LitServer".
"""

from __future__ import annotations

from typing import Any

import litserve

from loadtests.peers import options as peer_options

WAIT_S = 0.002
SLO_S = 0.1


class Api(litserve.LitAPI):
    work = peer_options.DEVICE

    def setup(self, device: str) -> None:
        self._run = peer_options.work_of(self.work)

    def decode_request(self, request):  # an annotation would make FastAPI parse the request
        return request["item"]

    def predict(self, items: list[Any]) -> list[Any]:
        return self._run(items)

    def encode_response(self, output: Any) -> dict[str, Any]:
        return {"answer": output}


def main() -> None:
    asked = peer_options.parse(__doc__)
    api = Api(max_batch_size=asked.batch, batch_timeout=WAIT_S)
    api.work = asked.work
    timeout_s = SLO_S if asked.work == peer_options.DEVICE else 30.0
    server = litserve.LitServer(api, accelerator="cpu", timeout=timeout_s, fast_queue=True)
    server.run(
        host="127.0.0.1",
        port=asked.port,
        num_api_servers=1,
        log_level="warning",
        generate_client_file=False,
        access_log=False,
    )


if __name__ == "__main__":
    main()
