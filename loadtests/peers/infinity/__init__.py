"""infinity doing the same embeddings as everybody else here."""
