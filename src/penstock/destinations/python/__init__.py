"""`type: python`: a destination that a user has written, for events (`stream`) or for tables (`tables`)."""
