"""The command line. `entry.py` starts first and loads the rest only when a command needs it."""
