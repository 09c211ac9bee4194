"""Messages to token ids by a model's template, and sampled text back to messages."""
