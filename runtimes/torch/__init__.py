"""PyTorch, in this process: eager, compiled, or captured as CUDA graphs."""
