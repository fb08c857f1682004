"""What gateways, replicas, Serve's controller and the autoscaler tell each other."""
