"""A parameter server of TensorFlow: a chief trains with the variables of a server, on the workers.

    hop run tensorflow.yaml

`TF_CONFIG` is set. The servers end after the chief.
"""

import json
import os

import tensorflow as tf

import hopyard as hop

task = json.loads(os.environ["TF_CONFIG"])["task"]
resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
if task["type"] != "chief":
    server = tf.distribute.Server(
        resolver.cluster_spec(), job_name=task["type"], task_index=task["index"], protocol="grpc"
    )
    print(f"{task['type']} {task['index']} serves", flush=True)
    server.join()
strategy = tf.distribute.ParameterServerStrategy(resolver)
coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
with strategy.scope():
    slope = tf.Variable(0.0)


@tf.function
def train_step():
    x = tf.random.uniform([64])
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((slope * x - 3 * x) ** 2)
    slope.assign_sub(0.5 * tape.gradient(loss, slope))


for _ in range(100):
    coordinator.schedule(train_step)
coordinator.join()
print(f"chief: slope {slope.numpy():.3f}", flush=True)
hop.summary(slope=float(slope.numpy()))
