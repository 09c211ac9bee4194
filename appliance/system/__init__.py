"""What is asked of the operating system: files, processes, memory, and no network."""
