"""Join the parts: capture into the change log, batches and copies out of it, and upkeep in between.

| room | what it does |
|---|---|
| `pipeline.py` | the entry: opens state, Spark and destinations, runs one source or several |
| `source_pipeline.py`, `source_threads.py` | one source with its capture, log and readers; several side by side |
| `log_reader.py`, `reader_thread.py` | what a source knows of a destination; the thread that it runs in |
| `retrying_reader.py`, `source_side.py` | retries, health and log demands of every reader; what the source shares |
| `destination_pipeline.py`, `open_destinations.py` | one log into one destination of tables; opening destinations |
| `dead_letter_box.py` | keeps dead letters, of streams and of tables with processors |
| `local_runner.py` | jobs of destinations that live in the driver, in threads |
| `capture/` | prepares the source, keeps its publication in step, runs and supervises capture's process |
| `watch/` | looks at the source and at the file for what the stream does not say |
| `apply/` | plans batches from the log, runs them as one Spark job, commits each table; a table's lifecycle |
| `publish/` | publishes the log to a stream: batches over shards, committed with their place |
| `copy/` | copies tables range by range, and replays the log over the copy until it is level |
| `upkeep/` | log retention over all destinations, maintenance between batches, the schema registry |
| `pins.py`, `repair_file.py` | freeze tables at one position while `verify` compares them, and repair rows there |
| `spark/` | the Spark session, the jobs and workers, jars, Java's own process |
| `process/` | signals, backoff, outages, log context |
"""
