"""How fast Hopyard is, each figure beside a peer or a bound measured in the same run.
See docs/internals/benchmarks.md."""
