"""The scheduling core: which waiting rows form the next batch, on which replica, and when.

Sans-IO: `Dispatcher.step(event, now) -> list[Action]`. It knows lengths, costs, tenants and
deadlines, never tensors, models, HTTP or clocks.

From below: `api` is its vocabulary, `estimates` what it has learnt, `state` what waits and runs,
`policies` answer one question each, `shared` asks them and carries out what they say. Each imports
only what stands before it here.
"""
