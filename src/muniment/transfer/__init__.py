"""Transfer of memories: import from other tools, joining, backup and restore."""
