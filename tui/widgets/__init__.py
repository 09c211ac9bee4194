"""Parts of the screen that views share: tables, charts, dialogs, the command palette.

No widget reads the record.
"""
