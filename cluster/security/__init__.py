"""Security: principals, their credentials and their permissions."""
