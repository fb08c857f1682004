"""What backends that batch generated tokens themselves have in common."""
