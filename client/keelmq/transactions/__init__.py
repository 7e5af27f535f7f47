"""Transactional producers: half messages, decisions and checks."""
