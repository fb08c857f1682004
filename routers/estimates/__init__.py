"""What is learnt and predicted: costs, delays, lengths."""
