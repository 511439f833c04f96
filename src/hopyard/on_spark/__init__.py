"""Studies on Apache Spark: the same driver and workers, as the tasks of a barrier stage.
`hopyard.spark` is what users import."""
