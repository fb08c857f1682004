"""Which lengths are batched together, and where the lines between them lie."""
