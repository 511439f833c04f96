"""The future of the cluster: estimated ends of runs, promised starts and reservations, and backfill that
delays none of them."""
