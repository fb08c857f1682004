"""What spares a request its own run: a cached answer, an identical request's, a cheaper model."""
