"""Pixels and who owns them: labelled images, sources, partitions, batches with augmentation."""
