"""From a text or an image to the model's own input: the same code wherever a model is fed."""
