"""The views, one module each, named as their keys and pages are.

No SQL and no file is read here: that is the pages' work.
"""
