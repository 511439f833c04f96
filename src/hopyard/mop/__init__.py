"""Pure: model hopper parallelism. Events go in, instructions come out; which trial trains where next."""
