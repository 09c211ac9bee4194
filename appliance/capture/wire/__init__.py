"""The wire formats as pure modules with the same functions each: Chat Completions, Responses, Messages and Gemini,
from request bytes to messages and from answers to whole or streamed bodies.

No socket, no file and no tokenizer here.
"""
