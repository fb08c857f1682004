"""Admission control: who may wait, on time or late, and who is told at once to come again."""
