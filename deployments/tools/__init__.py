"""The command line's own work: serve, control, profile, verify, record, simulate."""
