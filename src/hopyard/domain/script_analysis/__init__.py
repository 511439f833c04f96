"""How a script takes its parameters, by its syntax tree. Nothing of the script is executed."""
