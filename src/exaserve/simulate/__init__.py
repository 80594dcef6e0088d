"""A cluster that nobody has bought yet: the gateway's own scheduler, health and admission in virtual time."""
