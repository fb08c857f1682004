"""Wire formats: bytes to calls and answers to bytes. Pure functions; no sockets, queues, metrics."""
