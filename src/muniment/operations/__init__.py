"""The composed procedures, one per file: `remember`, `forget`, `dream`, `undo`, `review`, `history`."""
