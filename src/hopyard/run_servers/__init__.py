"""Programs that serve a page as a run: a notebook, TensorBoard, Visdom. They run in the run's environment."""
