"""What is sent: scenarios, what they draw, recorded traces."""
