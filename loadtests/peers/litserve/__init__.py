"""The comparison's work, served by LitServe."""
