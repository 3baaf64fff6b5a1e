"""The confinement of tool calls: `sandbox`, its tools and its fence. Importing it has no effect."""
