"""What an operator asks for: check, status, tables, schemas, verify, query, quarantine and reset."""
