"""What the gateway learns of its replicas: telemetry, probes, registries, agents."""
