"""Find the entries that help in a conversation, and inject them without making it wait."""
