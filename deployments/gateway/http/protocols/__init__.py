"""Wire formats: bytes to calls, answers to bytes. Pure functions; no sockets, queues or metrics."""
