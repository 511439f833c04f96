import random

import hopyard as hop

p = hop.params(lr=0.1, epochs=30)
points = [(x / 10, 3 * x / 10 + 1) for x in range(-10, 11)]
line = hop.bind(w=0.0, b=0.0)

for epoch in hop.loop(range(p.epochs)):
    for x, y in random.Random(epoch).sample(points, len(points)):
        error = line.w * x + line.b - y
        line.w -= p.lr * error * x
        line.b -= p.lr * error
    loss = sum((line.w * x + line.b - y) ** 2 for x, y in points) / len(points)
    hop.log(loss=loss, step=epoch)
    # in the loop: a run that was interrupted after its last iteration does not enter it again
    hop.summary(loss=loss)

print(f"y = {line.w:.3f} x + {line.b:.3f}")
