"""Parse and check the content of memory files: front matter, entries, secrets, attacks, trust and expiry.

Pure; start reading at `entry.py`.
"""
