"""Reads settings files and finds what they name on this machine; `deployments/settings` says what
is valid, and opens nothing."""
