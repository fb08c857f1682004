"""Takes events in, asks the policies, and is the only one that writes."""
