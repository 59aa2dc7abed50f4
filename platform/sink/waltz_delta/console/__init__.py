"""The console's pages about pipelines and tables. The console finds them by the entry point `delta` in the group `waltz.console`."""
