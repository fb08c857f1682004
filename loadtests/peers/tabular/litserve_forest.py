"""For LitServe ("Batching"). `fast_queue` as its documentation advises for many small requests."""

import sys

import litserve
import numpy as np
from sklearn.datasets import load_iris
from sklearn.ensemble import RandomForestClassifier


class Forest(litserve.LitAPI):
    def setup(self, device):
        features, species = load_iris(return_X_y=True)
        self.names = load_iris().target_names
        self.model = RandomForestClassifier(50, random_state=0).fit(features, species)

    def decode_request(self, request):
        return request["flower"]

    def batch(self, inputs):
        return np.array(inputs)

    def predict(self, flowers):
        return self.names[self.model.predict(flowers)]

    def unbatch(self, output):
        return list(output)

    def encode_response(self, output):
        return {"species": str(output)}


if __name__ == "__main__":
    api = Forest(max_batch_size=32, batch_timeout=0.002)
    server = litserve.LitServer(api, accelerator="cpu", fast_queue=True)
    port = int(sys.argv[1])
    server.run(
        host="127.0.0.1", port=port, num_api_servers=1, access_log=False, generate_client_file=False
    )
