"""Networks for runtimes other than Keras: their description and their programs."""
