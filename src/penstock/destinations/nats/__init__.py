"""NATS JetStream as a stream destination: `type: nats`."""
