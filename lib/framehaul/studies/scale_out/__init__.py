"""Scaling out: the same techniques on partitions over several workers, each partition exactly once, or nothing.

`study.run` measures, `moves` holds the work of a worker on one partition, `cluster` opens the workers. Nothing is
imported here, because workers import this package and need no more than the extra `scale-out`.
"""
