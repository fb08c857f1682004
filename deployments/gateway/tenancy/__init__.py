"""Who sends a request, and how much they may send."""
