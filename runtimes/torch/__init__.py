"""Runs models on PyTorch in this process: eagerly, compiled, or captured as CUDA graphs."""
