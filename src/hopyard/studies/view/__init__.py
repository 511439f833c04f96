"""Pure: what a study's journal says, for people and for programs."""
