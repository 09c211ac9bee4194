"""What the program asks of the operating system: atomic writes of files and folders, control groups and out-of-memory
kills, the guard over child processes, stale scratch folders, no network, and secrets taken out of what is logged.

Nothing here knows runs, models or Podman.
"""
