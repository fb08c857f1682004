"""What the processes tell each other: models, batches, streams, errors, which replicas run."""
