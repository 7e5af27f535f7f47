"""Reports to the service manager that runs the node, such as systemd."""
