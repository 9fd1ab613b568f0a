"""List the versions of tables' structures, and the difference between two."""
