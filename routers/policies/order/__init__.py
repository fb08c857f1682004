"""Whose turn is it among flows?"""
