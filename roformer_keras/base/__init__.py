"""Shared foundations: errors, checks, settings, backends."""
