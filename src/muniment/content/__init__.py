"""What stands in a file of the memory: front matter, entries, and the gates over its characters.

Pure; start reading at `entry.py`.
"""
