"""The trainer of `parallel: trials`: every trial is a separate run."""
