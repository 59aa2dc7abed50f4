"""The smoke test: a cluster of real processes, killed and stopped all the time, under clients that check their answers (docs/internals/simulator.md).

    make smoke                                          the original's test at twice its size and rate
    make smoke TRANSACTIONS=100000 SECONDS=120 SEED=7   a shorter one

`schedule` says what goes wrong when; `clients` append under locks and follow feeds, several in each of some processes; `history` is what they
learned and what the log holds in the end; `checks` judge that, and `replicas` compares what the storage nodes hold; `run` plays it all.
"""
