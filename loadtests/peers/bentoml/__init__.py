"""BentoML doing the same work as everybody else here."""
