"""vLLM as a child process, called with token ids."""
