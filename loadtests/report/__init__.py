"""Shows a load test's record to people: tables in a terminal, and a page for a browser."""
