"""What every route shares of HTTP: bodies, representations and caching, problems, middleware, addresses."""
