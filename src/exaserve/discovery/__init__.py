"""Where replicas come from: a stream of changes to the set of replicas."""
