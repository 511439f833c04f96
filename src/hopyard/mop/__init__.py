"""Model hopper parallelism as pure logic: decides which trial trains where next. Events go in, instructions
come out."""
