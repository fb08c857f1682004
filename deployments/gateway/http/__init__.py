"""One HTTP exchange: where a path leads, how a body is read, what each protocol says."""
