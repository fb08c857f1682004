"""`headrace profile --compare`: the backends that run a model, timed at its own lengths.

Candidates run in processes of their own, in turn; the command joins what they measured.
"""
