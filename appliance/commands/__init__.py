"""One module a group of commands; each adds its commands to the parser with `add`."""
