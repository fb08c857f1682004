"""The comparison's embeddings, served by infinity."""
