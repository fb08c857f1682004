"""`headrace profile --compare`: which backend runs this model fastest, at its own lengths?

Candidates run in processes of their own, in turn; the command joins what they measured.
"""
