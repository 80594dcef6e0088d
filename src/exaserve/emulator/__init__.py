"""Emulated inference engines: a continuous-batching model (PURE) and an HTTP server that answers like vLLM's."""
