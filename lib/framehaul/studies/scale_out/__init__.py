"""The same techniques on partitions, over several workers: every partition arrives exactly once, or nothing does.

A partition is written into a staging table of its own, and one statement or transaction puts all of them in the place
of the table. `moves` has what a worker does with one partition, `cluster` the workers.
"""
