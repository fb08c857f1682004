"""Backends behind one protocol (`types.Runtime`): ragged batches in, ragged results out.

They know batches and devices; never queues, tenants or HTTP.
"""
