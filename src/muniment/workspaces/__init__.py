"""Find the repository of a directory, and the memory of that repository."""
