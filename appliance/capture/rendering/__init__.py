"""Messages to token ids by a model's own chat template (`renderer`), and sampled text back to messages and tool calls
(`parsing`), for each model family.

No HTTP and no sampling here.
"""
