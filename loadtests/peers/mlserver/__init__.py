"""The comparison's work, served by MLServer."""
