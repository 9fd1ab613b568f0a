"""Figures, commands and secrets as an operator sees them."""
