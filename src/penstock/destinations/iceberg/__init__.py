"""The Iceberg destination."""
