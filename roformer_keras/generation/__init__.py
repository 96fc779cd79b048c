"""Writing on from prompts, for any model with a cache."""
