"""The Model Context Protocol: the same services for language models, over HTTP and over standard input."""
