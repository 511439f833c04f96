"""`python -m hopyard.studies`: the command in stored specifications. Starts `hopyard.study_app`."""

from runpy import run_module

run_module("hopyard.study_app", run_name="__main__", alter_sys=True)
