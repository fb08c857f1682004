"""State: what waits and what runs. Each record has one owner, and nothing here decides."""
