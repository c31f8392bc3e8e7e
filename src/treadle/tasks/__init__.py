"""Tasks: options, payloads, and the context of a handler."""
