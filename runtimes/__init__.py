"""Backends that run models, behind one protocol (`types.Runtime`): ragged batches in, results out.

A backend knows batches and devices, and nothing of queues, tenants or HTTP.
"""
