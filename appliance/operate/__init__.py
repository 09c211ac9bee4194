"""Is everything in order, and kept so: checks of the machine, a harness, a pack and a record, comparisons of
renderings, bug reports, bundles for machines without a network, and the systemd service.

No run depends on anything here.
"""
