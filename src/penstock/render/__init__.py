"""Turn the changes of a table into ordered events, and events into the records that streams publish."""
