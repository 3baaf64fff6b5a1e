"""Forbidden actions that a worker attempts, to show that the fence stops them, layer by layer.

Start with `attempt`: it contains all attempts in one table, the code of each attempt, and the code of the
worker that makes it. `trial` creates the targets, runs all attempts and judges the outcomes. `offer` reports
which layers this system supports, and how to get the missing ones.
"""

import muniment.sandbox.fence  # noqa: F401  checks the operating system
