"""For BentoML ("Adaptive batching")."""

import bentoml
import numpy as np
from sklearn.datasets import load_iris
from sklearn.ensemble import RandomForestClassifier


@bentoml.service(workers=1, traffic={"timeout": 30})
class Forest:
    def __init__(self):
        features, species = load_iris(return_X_y=True)
        self.names = load_iris().target_names
        self.model = RandomForestClassifier(50, random_state=0).fit(features, species)

    @bentoml.api(batchable=True, max_batch_size=32, max_latency_ms=1000)
    def predict(self, flowers: list[list[float]]) -> list[str]:
        return [str(name) for name in self.names[self.model.predict(np.array(flowers))]]
