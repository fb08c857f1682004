"""Runs models on TensorRT: builds engines for this GPU and keeps them on disk."""
