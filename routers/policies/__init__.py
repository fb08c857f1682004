"""Policies: each decides one question and changes nothing; the core carries out what it decides."""
