"""Power loss for real: `keelmqd` processes on file systems that are shut down under them. docs/powerloss.md"""
