"""What a run looks like in a terminal while it goes on."""
