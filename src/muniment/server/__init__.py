"""The daemon: takes facts over HTTP, without a session, and carries them out in lanes."""
