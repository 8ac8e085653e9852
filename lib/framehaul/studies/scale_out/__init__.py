"""Scaling out: techniques on partitions with several workers, where each partition is written exactly once or none is.

`study.run` measures. Workers import `moves`, with only the extra `scale-out` installed, so nothing is imported here.
"""
