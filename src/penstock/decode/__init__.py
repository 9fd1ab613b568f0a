"""pgoutput messages to Arrow columns. No socket, no Spark, no clock."""
