"""The run's standard output as a stream destination: `type: stdout`, for trying."""
