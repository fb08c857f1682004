"""May this model serve? The same samples through it and a reference, and what became of them."""
