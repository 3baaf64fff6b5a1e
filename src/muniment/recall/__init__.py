"""Find the entries that help in a conversation, and inject them without delaying the conversation."""
