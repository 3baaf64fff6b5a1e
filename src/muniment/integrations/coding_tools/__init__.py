"""Coding tools: what `setup` writes into their settings, and what it takes out again."""
