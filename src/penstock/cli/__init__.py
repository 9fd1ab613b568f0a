"""Run penstock's commands: one file per command group."""
