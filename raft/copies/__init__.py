"""The worth of a node's own copy: new disks, disks that were put back, replicas that differ."""
