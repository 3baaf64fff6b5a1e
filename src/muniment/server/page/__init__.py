"""The page of the daemon: what a browser is shown of the memory, and what its owner does there."""
