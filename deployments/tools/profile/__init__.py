"""`headrace profile`: measures what a model's batches cost on this machine, for `serve` to use.

It runs the real backend in this process, without Ray or HTTP. The result is stored in the cache
folder; starting replicas read it from there.
"""
