"""Run penstock inside a program: `Pipeline` runs a pipeline file in a thread. `penstock` has the public names."""
