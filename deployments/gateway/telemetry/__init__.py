"""What a gateway measures and says of it: metrics, traces, log lines."""
