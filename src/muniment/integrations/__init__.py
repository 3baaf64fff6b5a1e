"""Adapters from Muniment to interfaces of other programs; each file needs the extra with its name."""
