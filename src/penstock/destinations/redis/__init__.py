"""Redis Streams as a stream destination: `type: redis`."""
