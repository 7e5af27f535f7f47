"""Transactional producers: halves, decisions, checks."""
