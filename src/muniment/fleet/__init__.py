"""Many nodes, one PostgreSQL: homes, their leases and working copies, and the node that serves them."""
