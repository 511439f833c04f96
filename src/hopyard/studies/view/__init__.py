"""Pure views of a study's journal, for users and programs."""
