"""The public confinement: `sandbox`, its tools and its fence. Importing this package has no effect."""
