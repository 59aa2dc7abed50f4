"""The web console: pages about a log, for people. It reads statistics, the coordinator and replicas, and changes nothing unless actions are allowed.

`application` makes the program, `serving` runs it. Extra `console`.
"""
