"""Language models on vLLM, with its own OpenAI layer."""
