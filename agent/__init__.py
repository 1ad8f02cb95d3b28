"""Models, tools, filters, the kernel, the agent actor and its tool loop (floor 5)."""
