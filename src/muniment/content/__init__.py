"""Parse and check the content of memory files: front matter, entries, secrets, attacks, trust and expiry.

No function here opens a memory file or has side effects. Start reading at `entry.py`.
"""
