import sys
import time

for i in range(3):
    print("hello", i, sys.argv[1:])
    time.sleep(0.1)
