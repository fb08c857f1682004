"""What answers a request besides its model's queue: the cache, an identical request, a fallback."""
