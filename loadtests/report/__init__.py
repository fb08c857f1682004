"""A load test's record for people: tables for a terminal, one page for a browser."""
