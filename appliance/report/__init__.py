"""What people and other tools read from the record."""
