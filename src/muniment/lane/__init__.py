"""The lane: the durable serial queue of a workspace, over the ledger."""
