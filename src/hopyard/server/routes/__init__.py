"""One file per noun; each gives the endpoints of that noun."""
