"""Load tests: a load generator, benches, and other servers to compare with. All speak only HTTP."""
