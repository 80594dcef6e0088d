"""The cluster file and the environment: typed, strict about unknown keys, errors with the full path of the field."""
