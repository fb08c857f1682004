"""Which replica takes a lease, and when another one is asked as well."""
