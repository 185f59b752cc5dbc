"""Load runs: scenarios in a locust subprocess, one JSON line per request, exact statistics and verdicts.

Only `locust_user` imports locust, and only locust's own process imports it: gevent never enters ours.
"""
