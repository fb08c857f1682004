"""The rungs before a refusal: a cached answer, an identical request's, a cheaper model."""
