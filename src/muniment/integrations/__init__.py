"""Muniment behind interfaces that other programs already speak; each file needs an extra of its name."""
