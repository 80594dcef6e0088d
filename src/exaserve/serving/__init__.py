"""A request's life and the fleet that serves it, run by the gateway and by the simulator. Pure."""
