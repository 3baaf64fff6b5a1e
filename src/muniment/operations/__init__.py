"""The operations on a memory, such as `remember`, `forget`, `dream`, `edit`, `export` and `review`."""
