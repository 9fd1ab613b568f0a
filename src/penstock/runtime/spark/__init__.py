"""Start Spark and run tasks on it; jars, workers and the Java process."""
