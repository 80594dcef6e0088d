"""A whole cluster on this machine, as `exaserve up` and the demo start it."""
