"""What the commands of `headrace` do: serve, control, profile, verify, record, simulate."""
