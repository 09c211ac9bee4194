"""What each view shows, read from the record and the machine. No Textual here."""
