"""Running the agents' model: the embedded model and its batched sampler, and OpenAI-compatible endpoints."""
