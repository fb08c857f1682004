"""Load tests: generators, benchmarks and peers. Speaks HTTP to a running server, nothing else."""
