"""Actors, mailboxes, refs, futures, schedulers, exits, names, clock, telemetry (floor 1)."""
