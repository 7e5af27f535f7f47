"""What a node's own copy is worth: new disks, disks that were put back, replicas that differ."""
