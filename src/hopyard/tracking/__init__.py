"""What runs say: streams taken in, metrics and logs read back, followers, leaderboards."""
