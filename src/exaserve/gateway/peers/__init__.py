"""Gateways that share replicas: what they tell each other, and how."""
