"""The node agent: starts a node's engines, watches and measures them, and tells every gateway."""
