"""The scheduling core: which waiting rows form the next batch, on which replica, and when.

Sans-IO: `Dispatcher.step(event, now) -> list[Action]`. It knows lengths, costs, tenants and
deadlines, never tensors, models, HTTP or clocks.
"""
