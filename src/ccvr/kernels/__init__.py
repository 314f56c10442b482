"""Compiled kernels for small convolutions, with the images of a batch in the vector lanes (Halide; extra ``fast``)."""
