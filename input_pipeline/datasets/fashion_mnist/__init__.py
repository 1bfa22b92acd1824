"""The Fashion-MNIST data set, from local files or its home."""
