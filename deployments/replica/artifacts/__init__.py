"""A model's files on the node that needs them: fetched once, verified, unpacked, kept."""
