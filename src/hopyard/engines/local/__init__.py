"""The local engine: gangs as process trees on this machine."""
