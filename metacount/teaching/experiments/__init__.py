"""What is run to be taught or judged: a file a topic, small modules on the CPU, plain values."""
