"""Faults between an SDK and a real server: the answer is lost, not the request."""
