"""The comparison's work, served by Triton."""
