"""For Ray Serve ("Dynamic request batching"): `max_ongoing_requests` for batches of 32."""

import sys

import numpy as np
from ray import serve
from sklearn.datasets import load_iris
from sklearn.ensemble import RandomForestClassifier

from loadtests.peers.ray_serve.running import serve_until_ended


@serve.deployment(max_ongoing_requests=64)
class Forest:
    def __init__(self):
        features, species = load_iris(return_X_y=True)
        self.names = load_iris().target_names
        self.model = RandomForestClassifier(50, random_state=0).fit(features, species)

    @serve.batch(max_batch_size=32, batch_wait_timeout_s=0.002)
    async def predict(self, flowers):
        return [str(name) for name in self.names[self.model.predict(np.array(flowers))]]

    async def __call__(self, request):
        if request.method == "GET":
            return {}
        body = await request.json()
        return {"species": await self.predict(body["flower"])}


if __name__ == "__main__":
    serve_until_ended(Forest.bind(), int(sys.argv[1]))
