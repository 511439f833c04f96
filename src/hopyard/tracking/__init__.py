"""Tracking of runs: appends shipped streams, reads metrics and logs, serves followers, ranks leaderboards."""
