"""What waits and what runs: one owner each, and no decisions."""
