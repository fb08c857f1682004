"""How a new version of a model takes the live one's place, step by step."""
