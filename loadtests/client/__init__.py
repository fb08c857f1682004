"""How it is sent: connections, pacing and what comes back."""
