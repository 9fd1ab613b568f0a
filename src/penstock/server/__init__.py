"""The control plane: REST, metrics and a web page over the same functions as the commands."""
