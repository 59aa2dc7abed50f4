"""The report of `make bench`: an HTML page with charts, made from `benchmarks/latest.json` and the results of the run before."""
