"""Bucket edges: which lengths are batched together?"""
