"""Copy tables in ranges under a snapshot, then replay the log over the copy until it is level."""
