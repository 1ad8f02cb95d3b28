"""The provider actor, windows, transcripts, budgets, history repair, token counters (floor 4)."""
