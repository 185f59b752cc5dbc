"""Measurements that print a table of ratios. Nothing here is a test: timings on a shared machine only inform."""
