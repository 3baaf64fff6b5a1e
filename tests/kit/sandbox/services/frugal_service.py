"""The real service in a zygote with lower limits than those of a worker."""

import resource

from muniment.sandbox.tools.service import serve, warm

for limit, value in ((resource.RLIMIT_NOFILE, 50), (resource.RLIMIT_CPU, 20)):
    resource.setrlimit(limit, (value, value))

__all__ = ["serve", "warm"]
