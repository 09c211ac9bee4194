"""Images: built here, kept here, and those that tasks bring."""
