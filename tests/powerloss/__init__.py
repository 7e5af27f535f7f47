"""Real power loss: runs `keelmqd` processes on file systems that are shut down under them (docs/powerloss.md)."""
