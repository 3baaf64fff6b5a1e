"""The composed procedures, one a file: `remember`, `forget`, `dream`, `undo`, `review`, `history`."""
