"""What the road between client and server changes: distance, bandwidth, encryption, and a pooler."""
