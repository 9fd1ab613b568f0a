"""The net effect of a batch on a table, by key."""
