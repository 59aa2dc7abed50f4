"""The first minutes on machines that are not empty: `make machines`.

`clones` makes a clone that is set up within a second, `conditions` lists what is different about a machine, `session` is what must work there.
"""
