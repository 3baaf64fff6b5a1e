"""Hand-made faults, and a program that tells which of them the tests notice."""
