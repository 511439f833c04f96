"""Sends curves of trials to other tools: TensorBoard files, an MLflow server."""
