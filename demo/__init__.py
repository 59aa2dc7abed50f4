"""The airline: real flights, real conflicts, and tables that must come out exact. Run it with `python -m demo`.

Three dispatchers, one per New York airport, append each of their flights as a *leg* of its aircraft. The number of a leg is that aircraft's last leg
plus one, which they can learn only from the feed. The same aircraft flies from several airports, so the dispatchers really conflict
and only the write lock on the tail number keeps the numbering dense. A Spark job fills two Delta tables meanwhile, and at the end everything is
compared with the flights read independently.

    flights       reads the flights             lag          how far a table is behind
    legs          what a leg says, the fold     display      what you see while it runs
    dispatcher    one airport: the application  checks       what must hold at the end
    processes     children, and their end       queries      what to ask the tables
    spark         the spark-submit command      faults       what is killed, and when
    watch         what is seen from outside     airline      the run from start to end
    pipelines/    what the Spark job does
"""
