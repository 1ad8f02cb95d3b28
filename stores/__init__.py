"""Tables, conversation stores, group commit, and the shape of a message (floor 3)."""
