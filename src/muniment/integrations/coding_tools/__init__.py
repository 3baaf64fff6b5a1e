"""Coding tools: the entries that `setup` adds to their settings and removes again."""
