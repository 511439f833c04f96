"""For tests of the platform and of what others add to it: conformance suites, one for each kind of adapter.

Subclass a suite, give its one fixture, and inherit every case. Needs the extra `test`; product code never
imports it.
"""
