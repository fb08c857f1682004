"""What happens to texts before they are lengths: tokenisers, their cache, tenants in turn."""
