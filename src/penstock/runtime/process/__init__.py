"""What any long-running process needs: signals, backoff, outages, log context, companion tasks."""
