"""Faults. Each family has a module; the catalogue lists what can be chosen and what this machine allows."""
