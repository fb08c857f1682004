"""The error of `cluster_store`, apart from it: who handles the error need not import Ray."""

from __future__ import annotations


class StoreError(ConnectionError):
    """The store did not answer, or not in time. The message is for the user."""
