"""The inner step of augmented Omniglot on a GPU: shrinx beside PyTorch."""
