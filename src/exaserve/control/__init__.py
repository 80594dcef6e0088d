"""Slow decisions, pure: facts and ``now`` in, decisions with their reasons out. Who may use what, and how much."""
