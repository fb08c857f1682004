"""Headrace beside what one would pick instead: same work, same client, same run."""
