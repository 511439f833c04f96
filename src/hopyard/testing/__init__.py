"""Public test tools: conformance suites, one per kind of adapter, and fakes.

Subclass a suite, provide its single fixture, and inherit every case. Needs the extra `test`; product code
never imports this package.
"""
