"""A gateway: one ASGI app, one event loop, a queue for each model."""
