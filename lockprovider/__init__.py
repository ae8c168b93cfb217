"""Leases, fenced publish and other protocols built on conditional writes."""
