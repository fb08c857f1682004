"""What backends share of NVIDIA's libraries: the driver, memory, captured graphs."""
