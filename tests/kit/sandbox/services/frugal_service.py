"""The real service in a zygote that has less than a worker may have."""

import resource

from muniment.sandbox.tools.service import serve, warm

for limit, value in ((resource.RLIMIT_NOFILE, 50), (resource.RLIMIT_CPU, 20)):
    resource.setrlimit(limit, (value, value))

__all__ = ["serve", "warm"]
