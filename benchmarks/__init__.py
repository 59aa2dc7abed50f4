"""Side-by-side measurements of the platform on this machine. Run them with `python -m benchmarks [--only NAME] [--quick]`.

    measurement   one figure with its unit, conditions and what it is compared with; the table and the file
    setting       how much each benchmark does, and the conditions that every figure has
    floor         what the disk alone can do with the same bytes, in the same run
    load          an appending client: one in flight, many in flight, several partitions, a rate
    cpu           processor time by kind of process, which other users of the machine hardly change
    peers         the platform compared with Kafka and UmaDB (`make bench-kafka`, `make bench-umadb`)
    scaling       many partitions, what a transaction costs by role, models of both (`make bench-scale`, `make bench-costs`)
    append  feed  spark  delta    the benchmarks, by the name for `--only`
    documents     JSON for the benchmarks that decode: `decode`, `json`
    spark_session the part of `spark` that runs inside a Spark driver

On a shared machine, a figure varies by 30 %. Compare within one run, by `ratio`. Compare across runs only together with the conditions.
"""
