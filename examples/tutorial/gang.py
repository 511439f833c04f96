import os

place = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
print(f"rank {os.environ['RANK']} of {os.environ['WORLD_SIZE']}, rendezvous at {place}")
