"""The work served by LitServe, as well as its documentation can make it.

A `LitAPI` whose `predict` is given lists: one worker process owns the device, one API server,
`fast_queue` (its documentation's choice for many small requests). It looks for more items for 2 ms
a batch (with 0 its worker polls without pause and takes a processor to itself). What has waited for
longer than the SLO is refused (`timeout`), its only means against overload.
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

    def decode_request(self, request):  # LitServe asks FastAPI for what an annotation names
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
