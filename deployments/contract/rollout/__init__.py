"""How a new version of a model replaces the live one, step by step."""
