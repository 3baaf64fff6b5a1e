"""Which repository a directory belongs to, and which memory that has."""
