"""What the processes tell each other: models, batches, streams, errors, and which replicas run."""
