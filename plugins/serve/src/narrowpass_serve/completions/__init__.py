"""OpenAI's completions and chat completions, for bundles that generate."""
