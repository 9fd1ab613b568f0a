"""What an operator sees: status and the proof that lake equals source."""
