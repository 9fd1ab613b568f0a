"""One module a type family, all of one shape."""
