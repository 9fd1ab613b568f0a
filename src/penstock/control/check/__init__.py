"""Foresee what a changed file will do, and show what must be fixed."""
