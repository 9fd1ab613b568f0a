"""The YAML contract: models, table patterns, variable expansion."""
