"""The peers in the benchmarks. They are installed in a separate environment, never in Hopyard's."""
