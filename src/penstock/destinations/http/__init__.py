"""Requests to a webhook as a stream destination: `type: http`, at least once."""
