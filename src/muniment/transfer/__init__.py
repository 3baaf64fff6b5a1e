"""Memories that move: import, sources and formats of other tools, joining, backup and restore."""
