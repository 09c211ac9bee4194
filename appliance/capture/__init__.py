"""The proxy: bytes to messages to token ids and back, every call recorded."""
