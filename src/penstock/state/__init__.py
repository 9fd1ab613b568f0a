"""Table states, progress, component health and events of note; the pipeline's lock."""
