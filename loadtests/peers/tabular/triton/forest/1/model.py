"""For Triton's Python backend."""

import numpy as np
import triton_python_backend_utils as pb_utils
from sklearn.datasets import load_iris
from sklearn.ensemble import RandomForestClassifier


class TritonPythonModel:
    def initialize(self, args):
        features, species = load_iris(return_X_y=True)
        self.names = load_iris().target_names
        self.model = RandomForestClassifier(50, random_state=0).fit(features, species)

    def execute(self, requests):
        given = [pb_utils.get_input_tensor_by_name(r, "flower").as_numpy() for r in requests]
        species = self.names[self.model.predict(np.concatenate(given))].astype(object)
        ends = np.cumsum([len(rows) for rows in given])[:-1]
        return [
            pb_utils.InferenceResponse([pb_utils.Tensor("species", part.reshape(-1, 1))])
            for part in np.split(species, ends)
        ]
