"""What verifies the platform and is not part of it: run from the root of the repository, never installed.

`simulation` runs clusters under faults in virtual time; `mutants` are bugs planted there; `smoke` kills real processes; `crashes` goes through every
crash and flipped bit of a storage node; `fuzz` feeds the parsers; `conformance` has what more than one implementation must satisfy."""
