"""The gateway: client protocol, upstream pool, relay, and what watches over them."""
