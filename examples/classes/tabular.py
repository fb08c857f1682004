"""Flowers by their measures: a scikit-learn and an XGBoost classifier, trained when they load."""

import numpy as np
from sklearn.datasets import load_iris


class Forest:
    """scikit-learn, as it is."""

    inputs = {"flower": "FP32[4]"}
    outputs = {"species": "text", "probabilities": "FP32[3]"}

    def load(self, settings):
        from sklearn.ensemble import RandomForestClassifier

        features, species = load_iris(return_X_y=True)
        self.names = load_iris().target_names
        self.model = RandomForestClassifier(settings.get("trees", 50), random_state=0)
        self.model.fit(features, species)

    def predict(self, batch):
        found = self.model.predict_proba(np.asarray(batch["flower"]))
        return {"species": list(self.names[found.argmax(1)]), "probabilities": found}


class Boosted:
    """XGBoost, which `dependencies` installs for this model's replicas alone."""

    inputs = {"flower": "FP32[4]"}
    outputs = {"species": "INT64"}

    def load(self, settings):
        from xgboost import XGBClassifier

        features, species = load_iris(return_X_y=True)
        self.model = XGBClassifier(n_estimators=20, n_jobs=settings.threads)
        self.model.fit(features, species)

    def predict(self, batch):
        return self.model.predict(np.asarray(batch["flower"]))
