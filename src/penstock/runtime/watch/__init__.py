"""Look at the source's catalogue and at the pipeline's file for what the stream of changes does not say."""
