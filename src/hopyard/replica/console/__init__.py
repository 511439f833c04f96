"""The consoles of a replica: channels to users, on which they run commands beside the script."""
