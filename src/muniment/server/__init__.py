"""The daemon: accepts facts over HTTP, without a session, and processes them in lanes."""
