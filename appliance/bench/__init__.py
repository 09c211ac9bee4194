"""What `corral bench` measures, one module a bench, each with `TEXT`, `add(parser)` and `measure(arguments)`.

No run depends on anything here.
"""
