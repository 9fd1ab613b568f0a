"""Prove that destination equals source at one position, and repair differences."""
