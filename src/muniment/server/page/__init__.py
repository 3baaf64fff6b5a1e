"""The page of the daemon: the browser views of the memory and the forms of its owner."""
