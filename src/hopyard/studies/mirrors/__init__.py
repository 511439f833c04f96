"""Curves of trials where people look at them already: TensorBoard files, an MLflow server."""
