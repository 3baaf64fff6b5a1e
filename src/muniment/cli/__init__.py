"""The command line. `entry.py` starts first and loads other modules only if a command needs them."""
