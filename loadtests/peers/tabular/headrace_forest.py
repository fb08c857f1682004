"""For `runtime: python` of Headrace."""

import numpy as np
from sklearn.datasets import load_iris
from sklearn.ensemble import RandomForestClassifier


class Forest:
    inputs = {"flower": "FP32[4]"}
    outputs = {"species": "text"}

    def load(self, settings):
        features, species = load_iris(return_X_y=True)
        self.names = load_iris().target_names
        self.model = RandomForestClassifier(50, random_state=0).fit(features, species)

    def predict(self, batch):
        found = self.model.predict(np.asarray(batch["flower"]))
        return {"species": list(self.names[found])}
