"""`headrace profile`: what a model costs on this machine, and what `serve` should know of it.

Measured in this process on the live backend, without Ray or HTTP; kept in the cache folder.
"""
