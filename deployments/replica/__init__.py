"""One model on one replica: its process, its device's worker, and what it says of the model."""
