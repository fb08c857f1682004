"""The comparison of a model with its reference on the command line, and its fingerprint."""
