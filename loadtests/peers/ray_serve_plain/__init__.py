"""The device of 2 ms a batch, served by Ray Serve with its defaults."""
