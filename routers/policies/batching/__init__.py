"""Batching: which rows form the next batch?"""
