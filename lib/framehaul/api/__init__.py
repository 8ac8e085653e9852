"""The functions that users call: write a frame to a server, read a query into a frame."""
