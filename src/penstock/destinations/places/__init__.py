"""Keep the places of a stream in a folder, for destinations that cannot keep them with their records."""
