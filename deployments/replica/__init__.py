"""One model on one replica: the process, its device's worker, and what they say of the model."""
