"""Placement: which replica is asked first?"""
