"""Messages to token ids by a model's own chat template, and sampled text back to messages and tool calls, for each
model family.

No HTTP and no sampling here.
"""
