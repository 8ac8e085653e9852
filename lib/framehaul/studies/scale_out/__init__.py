"""Scaling out: techniques on partitions with several workers, where each partition is written exactly once or none is.

`study.run` measures, `moves` has partitions and the functions of workers, `cluster` opens the workers. Nothing is
imported here, because workers import this package with only the extra `scale-out` installed.
"""
