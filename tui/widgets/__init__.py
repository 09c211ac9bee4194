"""Parts of the screen that views share."""
