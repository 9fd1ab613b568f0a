"""Kafka as a stream destination: `type: kafka`."""
