"""The data channel between gateways and replicas: frames, the handshake, and what frames carry."""
