"""Handlers for topics, and for producing, pulling and finding their messages."""
