"""The data plane's protocol: clients' requests in, replicas' answers out, and the connections to both."""
