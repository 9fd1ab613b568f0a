"""List tables, and ask the running pipeline to copy, retry, drop or forget them."""
