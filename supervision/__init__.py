"""Child specs, the restart decision, supervisors, tree inspection (floor 2)."""
