"""A folder of JSON lines as a stream destination: `type: files`."""
