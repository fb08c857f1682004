"""The load generator: connections, the times of requests, and the answers."""
