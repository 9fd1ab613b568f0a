"""Join the parts: capture into the change log, batches and copies out of it, and upkeep in between.

| room | what it does |
|---|---|
| `pipeline.py` | the entry: opens state, Spark and destination, runs one source or several |
| `source_pipeline.py`, `source_threads.py` | one source from capture to its tables; several of them side by side |
| `capture/` | prepares the source, keeps its publication in step, runs and supervises capture's process |
| `watch/` | looks at the source and at the file for what the stream does not say |
| `apply/` | plans batches from the log, runs them as one Spark job, commits each table; a table's lifecycle |
| `copy/` | copies tables range by range, and replays the log over the copy until it is level |
| `upkeep/` | between batches: log retention, maintenance, the schema registry |
| `pins.py` | holds tables at one position while `verify` compares them |
| `spark/` | the Spark session, the jobs and workers, jars, Java's own process |
| `process/` | signals, backoff, outages, log context |
"""
