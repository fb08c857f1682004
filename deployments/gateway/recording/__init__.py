"""What callers really send, kept where the settings say so: for calibration, and to be replayed."""
