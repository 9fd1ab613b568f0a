"""A generator of what people do to a database, its pipeline and its lake, with one judge for all of it.

`world` holds the server, the pipeline and what was done so far; `rows`, `source`, `lake` and `operator` have the acts;
`judge` says whether every table is equal, copying or Errored, and whether the control table was ever late.
"""
