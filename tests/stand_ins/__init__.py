"""Servers written for the tests, where none can be had without a cloud."""
