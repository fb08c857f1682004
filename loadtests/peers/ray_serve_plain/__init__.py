"""Ray Serve as it comes, around the device of 2 ms a batch."""
