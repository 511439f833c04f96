"""The launchers of gangs: the command and the variables by which a framework finds all its processes."""
