"""Users: who may use the cluster, with credentials and permissions."""
