"""penstock keeps lakehouse tables equal to a live database. Start at `docs/architecture.md`."""

__version__ = "0.1.0"

__all__ = ["__version__"]
