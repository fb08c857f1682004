"""infinity-emb has a command line of its own."""
