"""Hooks on the libraries of a run's processes, without a change of the script.

The replica puts the folder `path` first on PYTHONPATH, so each interpreter of a run imports its
`sitecustomize`. These modules run in the user's interpreter, which may be as old as Python 3.7. They use the
standard library only, and import each other by relative imports.
"""
