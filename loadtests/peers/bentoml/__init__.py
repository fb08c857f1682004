"""The comparison's work, served by BentoML."""
