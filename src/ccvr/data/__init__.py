"""Labelled samples and their owners: data sets, sources, partitions, batches with augmentation."""
