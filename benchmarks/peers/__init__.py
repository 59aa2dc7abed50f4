"""The platform beside other systems, in turns in one run on one machine.

    kafka            `make bench-kafka`: throughput, latency at equal rates, one in flight, payload sizes and partitions
    kafka_cluster    three Kafka brokers that sync, on loopback
    kafka_clients    Kafka's two clients under the platform's loads: confluent-kafka in this process, Java's own tool in a JVM that stays warm
    kafka_cases      what is compared with what, with which settings
    rounds           sides in turns, warmed up: who is dropped, who is best, the spread of the ratios
    umadb            `make bench-umadb`: conditional appends beside UmaDB

Each figure is the platform's, with its ratio to a peer, the spread of that ratio over the rounds, and what each side promises when it answers.
"""
