"""What is watched of a running Headrace: one description, and what is made of it."""
