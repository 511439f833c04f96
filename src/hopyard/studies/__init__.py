"""The runtime of studies. It runs in the user's processes, with the standard library and the user's packages.
See design 0003."""
