"""What a gateway tells the autoscaler, and what it makes of the answer."""
