"""The shell: HTTP, Ray Serve, settings, metrics and the command line around the three islands."""
