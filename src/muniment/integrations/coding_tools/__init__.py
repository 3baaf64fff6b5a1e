"""The entries that `muniment setup` adds to the settings of coding tools, and removes again."""
