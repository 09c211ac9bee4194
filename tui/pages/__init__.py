"""What each view shows, read from the record and the machine as plain data, one module a view.

No Textual here: `corral view` prints the same data.
"""
