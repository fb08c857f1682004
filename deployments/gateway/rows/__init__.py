"""A request's tensors as the rows that queue and batch, and the rows' outputs as tensors again."""
