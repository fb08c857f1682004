"""What the command line writes for people: progress, the status table, the page of settings."""
