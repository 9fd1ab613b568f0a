"""Check the file against source and machine, foresee what a changed file will do, and show what must be fixed."""
