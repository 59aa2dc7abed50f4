"""Beyond two cores: what transactions cost by role, what follows for larger clusters, and many partitions on one node of each kind.

costs       pure: processor time, network and disk bytes per transaction by role, fitted to measured runs; nodes for a rate, first bottleneck
queueing    pure: a simulation of the append path with measured service times and open arrivals
cost_runs   `make bench-costs`: measures the runs, fits both models, checks them against runs they were not fitted to
partitions  `make bench-scale`: 1,000 partitions and 200 clients: memory, processor time, opening, handover
"""
