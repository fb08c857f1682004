"""The scheduling core: which waiting rows are sent next, to which replica, and when.

Sans-IO: `scheduler.step(event, now) -> list[Action]`. It knows lengths, costs, tenants and
deadlines, never tensors, models, HTTP or clocks.

From below: `api` is its vocabulary, `estimates` what it has learnt, `state` what waits and runs,
`policies` answer one question each, `shared` asks them. `batch` and `stream` each have a scheduler
of their kind, and know nothing of each other. Each imports only what stands before it here.
"""
