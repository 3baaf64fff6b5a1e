"""Manual faults, and a program that checks whether the tests detect them."""
