"""Who may use the endpoint, how much of it, and what they used: on the request path and in the state folder."""
