"""Channels, the session loop, events, durable carriers, flows (floor 6)."""
