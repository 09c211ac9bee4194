"""From calls to a tree, its roles, training rows and forks. Pure."""
